"""A peer by libzmq in its own process, so that a test can choose the pyzmq: ``libzmq_peer.py ROLE ADDRESS [KEYS]``.

``router`` binds and sends each message back. ``dealer`` connects, sends all ``messages()``, and prints ``same`` if they
come back. KEYS are three keys in hexadecimal: own secret, own public, and for a dealer the server's public key.
"""

from __future__ import annotations

import sys

import zmq
from zmq.utils import z85


def messages() -> list[list[bytes]]:
    """What is sent each way: all lengths of headers, empty frames, the most frames of a message."""
    sizes = (0, 1, 222, 223, 255, 256, 70_000, 3_000_000)
    return [[b"head", b"x" * size] for size in sizes] + [[b""], [b"", b""], [b"%d" % n for n in range(64)]]


def main() -> None:
    role, address, *keys = sys.argv[1:]
    with zmq.Context() as context, context.socket(zmq.ROUTER if role == "router" else zmq.DEALER) as end:
        end.linger = 0
        end.rcvtimeo = end.sndtimeo = 30_000
        end.setsockopt(zmq.HEARTBEAT_IVL, 20)
        end.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20_000)
        if keys:
            end.curve_secretkey, end.curve_publickey = (z85.encode(bytes.fromhex(key)) for key in keys[:2])
        if role == "router":
            end.curve_server = bool(keys)
            end.bind(address)
            print("bound", zmq.pyzmq_version(), flush=True)
            while (message := end.recv_multipart())[1:] != [b"end"]:
                end.send_multipart(message)
            return
        if keys:
            end.curve_serverkey = z85.encode(bytes.fromhex(keys[2]))
        end.connect(address)
        for message in messages():
            end.send_multipart(message)
        print("same" if [end.recv_multipart() for _ in messages()] == messages() else "different", flush=True)
        end.send(b"end")
        end.linger = 5_000


if __name__ == "__main__":
    main()
