"""Only one run has the checkpoint of a stream; one that died gives it away."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

import pytest

from client_stub.pipeline import lease as module
from client_stub.pipeline.lease import FILE, Lease, LeaseHolder
from tests.stub.conftest import eventually


class Files:
    """A checkpoint's folder in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def read(self, name: str) -> str | None:
        return self.texts.get(name)

    def write(self, name: str, text: str) -> None:
        self.texts[name] = text

    def delete(self, name: str) -> None:
        del self.texts[name]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    monkeypatch.setattr(module, "RENEW_S", 0.002)


def lease(files: Files, run: str, on_loss: Callable[[], None] = lambda: None) -> Lease:
    return Lease(files, run, on_loss)


def test_a_second_run_is_told_of_the_first_and_may_follow_it() -> None:
    files = Files()
    first, second = lease(files, "a"), lease(files, "b")
    assert first.take() is None
    holder = second.take()
    assert holder is not None
    assert (holder.run, holder.pid) == ("a", os.getpid())
    second.release()
    assert FILE in files.texts, "one that was refused takes nothing away"
    first.release()
    assert files.texts == {}
    follower = lease(files, "c")
    assert follower.take() is None
    follower.release()


@pytest.mark.parametrize(
    "left",
    [
        LeaseHolder("a", "elsewhere", 1, 7),  # renewed no more
        LeaseHolder("a", os.uname().nodename, 1 << 22, 7),  # a number above every process
    ],
)
def test_the_lease_of_a_dead_run_is_taken(left: LeaseHolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD_S", 0.02)
    files = Files()
    files.write(FILE, json.dumps(left._asdict()))
    follower = lease(files, "b")
    assert follower.take() is None
    assert json.loads(files.texts[FILE])["run"] == "b"
    follower.release()


def test_a_half_written_file_is_no_dead_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEAD_S", 30.0)
    files = Files()
    alive = LeaseHolder("a", "elsewhere", 1, 7)
    texts = iter(
        [json.dumps(alive._asdict()), "", '{"run"', json.dumps(alive._replace(renewals=8)._asdict())]
    )
    monkeypatch.setattr(files, "read", lambda _: next(texts))
    holder = lease(files, "b").take()
    assert holder == alive
    assert files.texts == {}


def test_a_run_whose_lease_was_taken_is_told() -> None:
    files, lost = Files(), threading.Event()
    first = lease(files, "a", lost.set)
    assert first.take() is None
    files.write(FILE, json.dumps(LeaseHolder("b", "elsewhere", 1, 0)._asdict()))
    eventually(lost.is_set)
    first.release()
    assert json.loads(files.texts[FILE])["run"] == "b"
