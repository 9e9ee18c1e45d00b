"""Goal: only what is proved to be the same record is taken for a double, whatever its letters are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.deadletter.letters import Letter, lines, parse
from sidecar.deadletter.progress import progress_file
from sidecar.deadletter.replay import Replay
from sidecar.deadletter.same_record import content_of
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import spool_files
from tests.deadletter.groups import group
from tests.deadletter.test_replay import Topic
from tests.reading_back import read_letters

SHARED = "row-0.0/1/1/0"
"""The name that earlier versions gave to every letter after a crash of the host."""


def line_of(value: bytes, name: str, *, failed_ms: int = 5, sender: str | None = None) -> bytes:
    """A letter as it stood in a spool before: without the name by which its client knew it."""
    (line,) = lines([group([[None, value]])], failed_ms)
    found: dict[str, Any] = json.loads(line)
    del found["sender"]
    if sender is not None:
        found["sender"] = sender
    return json.dumps(found | {"id": name}).encode() + b"\n"


def spool(folder: Path, name: str, *found: bytes) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_bytes(b"".join(found))
    return path


def left(folder: Path) -> list[bytes | None]:
    return [
        letter.value
        for path in spool_files(folder)
        for _, letter in read_letters(path)
        if isinstance(letter, Letter)
    ]


@pytest.mark.parametrize("refused", [(), (b"1",), (b"0", b"2")])
def test_different_records_of_one_name_are_all_sent(tmp_path: Path, refused: tuple[bytes, ...]) -> None:
    values = [b"0", b"1", b"2", b"3"]
    spool(tmp_path, "w-1", *(line_of(value, SHARED, failed_ms=int(value)) for value in values[:3]))
    spool(tmp_path, "w-2", line_of(b"3", SHARED))
    topic = Topic(*refused)
    Replay(tmp_path, chunk_records=2).run(topic)
    assert topic.taken == [value for value in values if value not in refused]
    assert left(tmp_path) == list(refused), "what was not delivered stays"
    topic.refuses = ()
    Replay(tmp_path).run(topic)
    assert sorted(map(bytes, filter(None, topic.taken))) == values
    assert left(tmp_path) == []


def test_equal_records_of_one_write_are_different_records(tmp_path: Path) -> None:
    """Five clients said the same in the same millisecond: nothing but the lines tells them apart."""
    once = [line_of(b"tick", SHARED)] * 5
    spool(tmp_path, "w-1", *once)
    spool(tmp_path, "w-2", *(line_of(b"tick", SHARED, failed_ms=6) for _ in range(3)))
    topic = Topic()
    tally = Replay(tmp_path, chunk_records=2).run(topic)
    assert (len(topic.taken), tally.doubles) == (5, 3), "a second write of them is a double"
    assert left(tmp_path) == []


@pytest.mark.parametrize("dies_after", range(6))
def test_equal_records_survive_a_replay_killed_anywhere(tmp_path: Path, dies_after: int) -> None:
    spool(tmp_path, "w-1", *[line_of(b"tick", SHARED)] * 5)
    topic = Topic(dies_after=dies_after)
    try:
        Replay(tmp_path, chunk_records=2).run(topic)
    except KeyboardInterrupt:
        assert dies_after < 5
    topic.dies_after = None
    Replay(tmp_path, chunk_records=2).run(topic)
    assert len(topic.taken) == 5 + (dies_after % 2 if dies_after < 5 else 0)
    assert left(tmp_path) == []


def test_equal_records_of_which_some_were_refused_stay(tmp_path: Path) -> None:
    """Notes about letters that left the file must not count for those that stay."""
    spool(tmp_path, "w-1", *[line_of(b"tick", SHARED)] * 3)
    sent = 0

    def send(letters: list[Letter], outcomes: list[str | None]) -> None:
        nonlocal sent
        for place in range(len(letters)):
            outcomes[place] = "refused" if sent + place == 1 else None
        sent += len(letters)

    Replay(tmp_path, chunk_records=1).run(send)
    assert left(tmp_path) == [b"tick"]
    topic = Topic()
    Replay(tmp_path).run(topic)
    assert topic.taken == [b"tick"]
    assert left(tmp_path) == []


def test_a_note_of_before_proves_nothing_of_a_shared_name(tmp_path: Path) -> None:
    path = spool(tmp_path, "w-1", line_of(b"a", SHARED), line_of(b"b", SHARED))
    progress_file(path).write_text(f"# sending 2\n{SHARED}\n# sent\n")
    topic = Topic()
    Replay(tmp_path).run(topic)
    assert topic.taken == [b"a", b"b"]


def test_a_note_of_before_proves_what_one_record_is_called(tmp_path: Path) -> None:
    sender = f"{'ab' * 20}/3/1/0"
    path = spool(tmp_path, "w-1", line_of(b"a", sender))
    progress_file(path).write_text(f"# sending 1\n{sender}\n# sent\n")
    writer = SpoolWriter(tmp_path, "v", max_bytes=1 << 20, drop_oldest=False)
    writer.append([group([[None, b"a"]])])  # this version writes it again: the client's name is the same
    writer.close()
    topic = Topic()
    assert Replay(tmp_path).run(topic).doubles == 2
    assert topic.taken == []
    assert left(tmp_path) == []


def test_a_record_that_two_versions_wrote_is_one(tmp_path: Path) -> None:
    spool(tmp_path, "w-1", line_of(b"a", f"{'ab' * 20}/3/1/0"))
    writer = SpoolWriter(tmp_path, "v", max_bytes=1 << 20, drop_oldest=False)
    writer.append([group([[None, b"a"]])])
    writer.close()
    topic = Topic()
    assert Replay(tmp_path).run(topic).doubles == 1
    assert topic.taken == [b"a"]


@pytest.mark.parametrize("name", [f"{'0f' * 16}/7", f"{'ab' * 20}/3/1/0", SHARED])
def test_a_name_alone_never_makes_a_double(tmp_path: Path, name: str) -> None:
    spool(tmp_path, "w-1", line_of(b"a", name), line_of(b"b", name, failed_ms=6))
    topic = Topic()
    Replay(tmp_path).run(topic)
    assert topic.taken == [b"a", b"b"]
    spool(tmp_path, "w-9", line_of(b"c", name))
    Replay(tmp_path).run(topic)
    assert topic.taken == [b"a", b"b", b"c"], "nor the note of one that was delivered"


def test_all_that_would_be_sent_is_compared() -> None:
    letter = parse(line_of(b"value", "x"))
    others = [
        letter._replace(topic="other"),
        letter._replace(key=b""),
        letter._replace(value=None),
        letter._replace(partition=0),
        letter._replace(timestamp_ms=1),
        letter._replace(headers=[("a", None)]),
        letter._replace(headers=[("a", b"")]),
        letter._replace(headers=[("a", b"b"), ("c", None)]),
        letter._replace(headers=[("a", None), ("bc", None)]),
    ]
    assert len({content_of(each) for each in (letter, *others)}) == len(others) + 1
    assert content_of(letter) == content_of(letter._replace(identity="y", failed_ms=9, error="E", text="t"))
