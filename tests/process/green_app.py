"""The application of test_green_servers.py: WSGI, Celery and Flask-SocketIO with one producer, made at import.

As fleets do it, the module is imported before the server forks or patches; its producer may have sent by then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from client_stub import Producer

RUN_DIR: Final = os.environ["KAFKA_SIDECAR_RUN_DIR"]
FOLDER: Final = os.environ.get("GREEN_QUEUE", "")
"""Of a Celery worker."""
TOPIC: Final = "t"
PATIENCE_S: Final = 60.0
PARENT_RECORDS: Final = 20

producer: Final = Producer(max_block_ms=PATIENCE_S * 1e3, connect_timeout_ms=PATIENCE_S * 1e3)


def send(name: str, count: int) -> dict[str, Any]:
    """Send from the green thread of a request. Returns what was delivered, and in which process."""
    waiting = [producer.send(TOPIC, f"{name}/{number}|".encode()) for number in range(count)]
    offsets = [each.result(PATIENCE_S).offset for each in waiting]
    return {"pid": os.getpid(), "name": name, "delivered": list(range(len(offsets)))}


def work_of_the_parent() -> None:
    """The producer's thread runs in the parent before it forks; its records are the parent's."""
    print(json.dumps(send("parent", PARENT_RECORDS)), flush=True)


if os.environ.get("GREEN_PARENT_SENDS") == "1":
    work_of_the_parent()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """GET /NAME/COUNT."""
    _, name, count = environ["PATH_INFO"].split("/")
    body = json.dumps(send(name, int(count))).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def serve_socketio(mode: str) -> None:
    """Flask-SocketIO on a free port, whose number it prints."""
    import socket

    from flask import Flask
    from flask_socketio import SocketIO

    flask = Flask(__name__)
    server = SocketIO(flask, async_mode=mode)
    flask.add_url_rule("/<name>/<int:count>", view_func=send)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    print(port, flush=True)
    server.run(flask, host="127.0.0.1", port=port)


if FOLDER:
    from green_queue import queue_in  # as Celery finds this module: without a package

    celery = queue_in(FOLDER)
    celery.task(name="send")(send)

if __name__ == "__main__":
    serve_socketio(sys.argv[1])
