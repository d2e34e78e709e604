"""What TCP ports answer to one who has no token: `ports.py HOST:PORT…`, one line a question, `KIND HOST:PORT PATH`.

KIND is closed (no connection), mute (one, on which nobody speaks HTTP: gRPC), the status where it is not 200, metrics (what
Prometheus reads), page (HTML), empty, or open: anything else.
"""

import http.client
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

PATHS = ("/", "/metrics", "/api/jobs/", "/api/v0/nodes", "/nodes?view=summary")
SECONDS = 5


def kind(place: str, path: str) -> str:
    """Ask once."""
    connection = http.client.HTTPConnection(place, timeout=SECONDS)
    try:
        connection.connect()
        connection.sock.settimeout(4 * SECONDS)  # the kernel connects, a process that may wait for a core answers
    except OSError:
        return "closed"
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().strip()
    except (OSError, http.client.HTTPException):
        return "mute"
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        return str(answer.status)
    if b"# TYPE " in body:
        return "metrics"
    if body[:15].lower() == b"<!doctype html>":
        return "page"
    return "open" if body else "empty"


questions = list(product(sys.argv[1:], PATHS))
with ThreadPoolExecutor(64) as pool:
    for question, answer in zip(questions, pool.map(lambda question: kind(*question), questions), strict=True):
        print(answer, *question)
