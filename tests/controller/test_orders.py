"""Goal: only the daemon's user and root give orders, within a bound, and an order that is refused changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from sidecar.common.errors import Refused
from sidecar.common.pauses import PAUSED_TOPICS_MAX, Pauses
from sidecar.config.client_rules import Caller
from sidecar.controller.front.orders import Orders
from sidecar.controller.rundir.run_dir import RunDir

US = Caller(os.geteuid())


def orders(folder: Path) -> tuple[Orders, list[Pauses]]:
    used: list[Pauses] = []

    async def use() -> list[str]:
        used.append(made.pauses)
        return []

    made = Orders(RunDir(folder), use=use)
    return made, used


def give(made: Orders, verb: str, *topics: str, caller: Caller = US) -> object:
    return asyncio.run(made.carry_out(verb, list(topics), caller))


def test_a_member_of_the_group_gives_no_orders(tmp_path: Path) -> None:
    made, used = orders(tmp_path)
    with pytest.raises(Refused, match="Only the daemon's user and root"):
        give(made, "pause", "orders", caller=Caller(os.geteuid() + 1))
    assert not used
    assert not list(tmp_path.iterdir())


def test_an_order_is_kept_for_the_next_daemon_before_the_workers_have_it(tmp_path: Path) -> None:
    made, used = orders(tmp_path)
    give(made, "pause", "orders")
    give(made, "pause", "orders")
    give(made, "drain")
    assert len(used) == 2, "a repeat changes nothing"
    path = tmp_path / "pauses.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert Pauses.from_mapping(json.loads(path.read_text())) == made.pauses == orders(tmp_path)[0].pauses
    assert "no records are accepted and records of 'orders' are not sent" in made.sentence()
    give(made, "resume")
    assert not orders(tmp_path)[0].pauses


def test_paused_topics_have_a_bound(tmp_path: Path) -> None:
    made, _ = orders(tmp_path)
    give(made, "pause", *(f"topic-{number}" for number in range(PAUSED_TOPICS_MAX)))
    before = made.pauses
    for words in (
        ("pause", "one-more"),
        ("pause", "x" * 250),
        ("pause", ""),
        ("pause",),
        ("resume", "y"),
        ("stop",),
    ):
        with pytest.raises(Refused):
            give(made, *words)
        assert made.pauses == before
    give(made, "resume", "topic-0")
    give(made, "pause", "one-more")


def test_a_damaged_file_pauses_nothing(tmp_path: Path) -> None:
    for text in ("", "[]", '{"topics": 3, "drained_since_ms": "x"}', '{"topics": {"a": "b"}}'):
        (tmp_path / "pauses.json").write_text(text)
        assert not orders(tmp_path)[0].pauses
