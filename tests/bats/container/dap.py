"""A client of the Debug Adapter Protocol, as VS Code is one: attaches to a breakpoint that waits, and lets the job go on.

    dap.py ATTACH EXPRESSION        ATTACH: the configuration of `make debugger`, as JSON; connects to its `connect`

Prints the innermost frames where it stopped as `FUNCTION FILE:LINE`, runs EXPRESSION there, continues, and detaches.
"""

import itertools
import json
import socket
import sys


class Client:
    """One connection: requests, and the events that come in between."""

    def __init__(self, host, port):
        self._socket = socket.create_connection((host, port), 10)
        self._socket.settimeout(60)
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._events = []

    def send(self, command, **arguments):
        number = next(self._numbers)
        body = json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return number

    def receive(self):
        length = 0
        while line := self._stream.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self._stream.read(length))

    def answer(self, number):
        while True:
            message = self.receive()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                return message.get("body", {})
            if message["type"] == "event":
                self._events.append(message)

    def ask(self, command, **arguments):
        return self.answer(self.send(command, **arguments))

    def event(self, name):
        for event in self._events:
            if event["event"] == name:
                self._events.remove(event)
                return event.get("body", {})
        while True:
            message = self.receive()
            if message["type"] == "event" and message["event"] == name:
                return message.get("body", {})


def main(attach, expression):
    connect = attach["connect"]
    client = Client(connect["host"], connect["port"])
    client.ask("initialize", adapterID="debugpy", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
    attached = client.send("attach", **attach)
    client.event("initialized")
    client.ask("setExceptionBreakpoints", filters=["uncaught"])  # as VS Code does
    client.ask("configurationDone")
    client.answer(attached)
    thread = client.event("stopped")["threadId"]
    frames = client.ask("stackTrace", threadId=thread)["stackFrames"]
    for frame in frames[:4]:
        print(frame["name"], f"{frame['source']['path']}:{frame['line']}")
    mine = next(frame for frame in frames if frame["name"] == "compute_score")
    client.ask("evaluate", expression=expression, frameId=mine["id"], context="repl")
    client.ask("continue", threadId=thread)
    client.ask("disconnect", terminateDebuggee=False)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
