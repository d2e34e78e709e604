"""Does Ray's token go along a redirect? `redirect.py` plays a head that redirects each request of Ray's SDK and of `ray job submit`.

Redirects to another port and to another address. Prints one line for each: `CLIENT STATUS ADDRESS HEAD ELSEWHERE`. HEAD is how
many requests came with the token to the head; ELSEWHERE is how many of those that were redirected had the token, of how many.
"""

import contextlib
import http.server
import json
import os
import socketserver
import subprocess
import threading

from ray.job_submission import JobSubmissionClient

from verl_regress.cluster import ray_private

TOKEN = "a-token-that-opens-nothing-0123456789"


class Server(socketserver.ThreadingTCPServer):
    """Answers as Ray's dashboard does when a job is submitted, or redirects there with `status`.

    Not `http.server`'s own class, which asks the DNS for the address's name first.
    """

    daemon_threads = True

    def __init__(self, address: str, status: int = 200, there: str = "") -> None:
        self.seen: list[bool] = []  # for each request: does it contain the token?
        self.status, self.there = status, there
        super().__init__((address, 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.server_address[0]}:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Records whether the token came along, in whichever header, path or body."""

    server: Server

    def do_GET(self) -> None:
        """Answer each method alike."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.server.seen.append(TOKEN in f"{self.path}{self.headers}{body}")
        answer = {"ray_version": "2.60.0"} if self.path == "/api/version" else {"job_id": "job", "submission_id": "job"}
        content = json.dumps(answer).encode()
        self.send_response(self.server.status)
        if self.server.there:
            self.send_header("Location", self.server.there + self.path)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


def by_sdk(url: str) -> None:
    """Submit as `RayApi.submit` does: the client's first two requests, which say nothing of a job, follow their redirect; the third does not."""
    client = ray_private.refusing_redirects(JobSubmissionClient(url))
    with contextlib.suppress(RuntimeError):
        client.submit_job(submission_id="job", entrypoint="true", entrypoint_num_cpus=1)


def by_command(url: str) -> None:
    """Submit as `RayApi.submit_by_command` does."""
    command = ["ray", "job", "submit", "--address", url, "--no-wait", "--submission-id", "job", "--", "true"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "no_proxy": "*"}
for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
    os.environ.pop(name, None)
for submit, statuses in ((by_sdk, (301, 302, 303, 307, 308)), (by_command, (307,))):
    for status in statuses:
        for address in ("127.0.0.1", "127.0.0.2"):
            elsewhere = Server(address)
            head = Server("127.0.0.1", status, elsewhere.url)
            submit(head.url)
            print(submit.__name__, status, address, sum(head.seen), f"{sum(elsewhere.seen)}/{len(elsewhere.seen)}")
