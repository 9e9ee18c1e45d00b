"""Goal: millions of small submissions cost a worker little memory, and its successor no Python for each of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sidecar.kernel import ENTRY_INDEX_BYTES, RECORD_INDEX_BYTES

SUBMISSIONS = 60_000
PRIVATE_BYTES_MAX = 150


def adopt(submissions: int, state: str, *how: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.worker.large_slot", str(submissions), state, *how],
        env={"PYTHONPATH": ".", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("accepted",)], ids=["adopted", "accepted"])
@pytest.mark.parametrize("state", ["placed", "waiting"])
def test_a_waiting_submission_costs_little_private_memory(state: str, how: tuple[str, ...]) -> None:
    """Measured in a process of its own, from before the adoption, or the first of them, until all stand in batches."""
    found = adopt(SUBMISSIONS, state, *how)
    assert found["bytes"] <= PRIVATE_BYTES_MAX
    # Its charge against the pool is its cost, but for what every worker has anyway.
    assert found["bytes"] <= ENTRY_INDEX_BYTES + RECORD_INDEX_BYTES + 4_000_000 / SUBMISSIONS


@pytest.mark.slow
@pytest.mark.parametrize("state", ["placed", "waiting"])
def test_an_adoption_runs_no_python_for_each_submission(state: str) -> None:
    few, many = adopt(1_000, state), adopt(SUBMISSIONS, state)
    assert many["calls"] - few["calls"] < SUBMISSIONS / 10


@pytest.mark.long
@pytest.mark.parametrize("state", ["placed", "waiting"])
def test_a_slot_of_four_million_submissions(state: str) -> None:
    """A full pool of 1 GiB."""
    assert adopt(4_200_000, state)["bytes"] <= ENTRY_INDEX_BYTES + RECORD_INDEX_BYTES
