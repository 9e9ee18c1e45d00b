"""Goal: who may have a stage: its user, a client of its name, and for a drop the daemon's user."""

from __future__ import annotations

import os

import msgpack
import pytest

from client_stub.contract.wire import Kind, LocalCode, StagePart
from sidecar.config.client_rules import Caller
from sidecar.shm.segment import Segment
from sidecar.worker.transactions.stage_token import digest32

from .slot_harness import MemoryBroker, SlotHarness
from .stage_harness import ID, Includer, Stager, know_topic, messages

MINE = Caller(1_000)
ANOTHER = Caller(1_001)
BY_KEY = Caller(0, key=b"k" * 32)


@pytest.fixture
def harness(segment: Segment) -> SlotHarness:
    harness = SlotHarness(segment, MemoryBroker(), 1)
    know_topic(harness)
    return harness


def staged(harness: SlotHarness, name: str = "filler") -> bytes:
    """The token of a stage that a user has filled under a name."""
    stager = Stager(harness)
    stager.session.caller, stager.session.name = MINE, name
    stager.open(1)
    stager.send(1, [b"x"])
    return stager.seal(1)


@pytest.mark.parametrize(
    ("caller", "name", "is_taken"),
    [
        (MINE, "other", True),
        (ANOTHER, "filler", True),
        (ANOTHER, "other", False),
        (Caller(0), "other", False),
    ],
)
def test_include_needs_the_user_or_the_name(
    harness: SlotHarness, caller: Caller, name: str, *, is_taken: bool
) -> None:
    token = staged(harness, "client" if name == "filler" else "filler")
    includer = Includer(harness)
    includer.session.caller = caller
    code, _, text, _ = includer.include(token)
    assert (code == 0) is is_taken
    if not is_taken:
        assert code == LocalCode.STAGE_UNKNOWN and "is another user's" in text


def test_name_that_was_made_for_its_digest_is_another_name(harness: SlotHarness) -> None:
    mine, made = "import-59685", "import-83023"
    assert digest32(mine) == digest32(made)
    token = staged(harness, mine)
    includer = Includer(harness)
    includer.session.caller, includer.session.name = ANOTHER, made
    code, _, text, _ = includer.include(token)
    assert code == LocalCode.STAGE_UNKNOWN and "is another user's" in text


@pytest.mark.parametrize(
    ("caller", "dropped"),
    [(MINE, 1), (ANOTHER, 0), (Caller(0), 1), (Caller(os.geteuid()), 1), (BY_KEY, 0)],
)
@pytest.mark.parametrize("up_to", [None, 10])
def test_drop_needs_the_user_or_the_daemons(
    harness: SlotHarness, caller: Caller, dropped: int, up_to: int | None
) -> None:
    token = staged(harness)
    includer = Includer(harness)
    includer.session.caller = caller
    tokens = [token] if up_to is None else []
    port = harness.rooms.brokers.transactions.stages
    port.on_frame(includer.session, Kind.STAGES_DROP, [1, ID, up_to], msgpack.packb(tokens), harness.now_ms)
    ((what, _, code, _, _, count),) = messages(includer.session, Kind.STAGE)
    assert (what, count) == (StagePart.DROPPED, dropped)
    assert bool(code) is (not dropped and up_to is None)
