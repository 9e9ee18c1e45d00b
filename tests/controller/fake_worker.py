"""A worker for supervisor tests: speaks the control channel, and misbehaves as its config says.

Started as a script, exactly as the supervisor starts ``sidecar.worker``.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time

from sidecar.common.control import Drain, Drained, NeedTopics, Ready, Start, Stop, UpdateMetadataReply, Warm
from sidecar.common.control_codec import START_FD_BYTE, ControlDecoder, encode_message


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--stderr-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    arguments = parser.parse_args()
    assert os.getppid() == arguments.parent_pid
    # As the real one: the controller drains by message.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    sock = socket.socket(fileno=arguments.control_fd)
    if sock.recv(len(START_FD_BYTE)) != START_FD_BYTE:
        return
    decoder = ControlDecoder()
    behaviour = ""
    while data := sock.recv(65_536):
        for message in decoder.feed(data):
            if isinstance(message, Start):
                behaviour = str(message.config.get("behaviour", ""))
                if behaviour == "crashes":
                    sock.sendall(encode_message(Warm(os.getpid())))
                    sys.exit(1)
                if behaviour == "bad config":
                    sys.exit(3)
                if behaviour == "crash first" and message.incarnation == 1:
                    sys.exit(1)
                if behaviour == "adopts for long":
                    signal.sigwait({signal.SIGUSR1})
                if behaviour == "hangs at first" and message.incarnation == 1:
                    time.sleep(600)
                sock.sendall(encode_message(Ready(os.getpid(), message.worker_epoch)))
                if behaviour == "asks":
                    for said in (UpdateMetadataReply(0, message.worker_epoch), Stop(), NeedTopics(("t",))):
                        sock.sendall(encode_message(said))
            elif isinstance(message, Drain):
                if behaviour == "hang in drain":
                    time.sleep(600)
                sock.sendall(encode_message(Drained(7 if behaviour == "leaves 7" else 0)))
            elif isinstance(message, Stop):
                sys.exit(0)


main()
