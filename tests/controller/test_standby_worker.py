"""A process before it is a worker: what it says while it is loaded is kept, to a bound, and nobody waits for it."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.main import cli
from sidecar.controller.workers.standby_worker import WORDS_BYTES_MAX, StandbyWorker, last_line

pytestmark = pytest.mark.process


def ended(program: str) -> StandbyWorker:
    standby = StandbyWorker.spawn((sys.executable, "-c", program))
    assert asyncio.run(standby.wait_warm()) is False
    standby.process.wait(20)
    return standby


@pytest.mark.parametrize("said", [0, WORDS_BYTES_MAX - 6, 20 * WORDS_BYTES_MAX])
def test_the_last_words_of_one_that_cannot_be_loaded_are_kept_to_a_bound(said: int) -> None:
    standby = ended(f"import sys; sys.stderr.write('x' * {said} + '\\nlast\\n'); sys.exit(1)")
    words = standby.take_words()
    assert len(words) == min(said + 6, WORDS_BYTES_MAX)
    assert last_line(words) == "last"
    assert standby.take_words() == ""
    standby.end()


def test_one_that_is_loaded_says_so_and_one_that_ends_does_not() -> None:
    standby = ended("pass")
    assert last_line(standby.take_words()) == ""
    standby.end()
    warm = StandbyWorker.spawn()
    assert asyncio.run(warm.wait_warm()) is True
    assert asyncio.run(warm.wait_warm()) is True, "the message stays in the socket"
    warm.end()


def test_doctor_waits_for_a_worker_and_no_longer(monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> None:
    words = ["doctor", "--run-dir", str(short_dir / "run")]
    assert "A worker process starts." in CliRunner().invoke(cli, words).output
    monkeypatch.setattr(importlib.import_module("sidecar.cli.doctor"), "WORKER_TIMEOUT_S", 0.001)
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 1 and "A worker process is not loaded after 0.001 s." in done.output
