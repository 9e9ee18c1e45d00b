"""Goal: a replay sends each letter once, keeps the failed ones, and goes on where an earlier one was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_stub.contract.wire import LocalCode
from sidecar.deadletter.letters import Letter
from sidecar.deadletter.progress import KEPT_S, SUFFIX, progress_file, read_progress
from sidecar.deadletter.replay import NO_OUTCOME, Replay, ReplayRunning
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import drop_file, spool_files
from tests.deadletter.groups import group


class Topic:
    """Takes letters; ``refuses`` values fail; dies (as kill -9 would) when it has taken ``dies_after``."""

    def __init__(self, *refuses: bytes, dies_after: int | None = None) -> None:
        self.taken: list[bytes | None] = []
        self.refuses = refuses
        self.dies_after = dies_after

    def __call__(self, letters: list[Letter], outcomes: list[str | None]) -> None:
        for place, letter in enumerate(letters):
            if len(self.taken) == self.dies_after:
                raise KeyboardInterrupt  # nothing is noted any more
            if letter.value in self.refuses:
                outcomes[place] = "refused"
            else:
                self.taken.append(letter.value)
                outcomes[place] = None


def fill(folder: Path, count: int, *, close: bool = True, topic: str = "orders", seq: int = 1) -> None:
    writer = SpoolWriter(folder, f"w{seq}", max_bytes=1 << 20, drop_oldest=False)
    writer.append([group([[None, b"%d" % number] for number in range(count)], topic=topic, seq=seq)])
    if close:
        writer.close()


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_all_delivered_leaves_nothing_but_the_identities_of_the_day(tmp_path: Path) -> None:
    fill(tmp_path, 12)
    topic = Topic()
    tally = Replay(tmp_path, chunk_records=5).run(topic)
    assert topic.taken == values(12)
    assert (tally.total("found"), tally.total("delivered"), tally.total("failed")) == (12, 12, 0)
    assert spool_files(tmp_path) == []
    assert len(read_progress(tmp_path)[0]) == 12
    fill(tmp_path, 12)  # a crash wrote them again
    again = Replay(tmp_path).run(topic)
    assert (again.total("found"), again.doubles) == (0, 12)
    assert topic.taken == values(12)
    assert spool_files(tmp_path) == []


def test_a_failed_dead_letter_stays_and_is_sent_next_time(tmp_path: Path) -> None:
    fill(tmp_path, 6)
    tally = Replay(tmp_path).run(Topic(b"2", b"4"))
    assert (tally.total("delivered"), tally.total("failed")) == (4, 2)
    assert tally.of("orders").reasons == {"refused": 2}
    (left,) = spool_files(tmp_path)
    assert len(left.read_bytes().splitlines()) == 2
    topic = Topic()
    Replay(tmp_path).run(topic)
    assert topic.taken == [b"2", b"4"]
    assert spool_files(tmp_path) == []


@pytest.mark.parametrize("dies_after", range(0, 11))
def test_killed_anywhere_only_the_chunk_under_way_is_sent_twice(tmp_path: Path, dies_after: int) -> None:
    fill(tmp_path, 10)
    topic = Topic(dies_after=dies_after)
    try:
        Replay(tmp_path, chunk_records=3).run(topic)
    except KeyboardInterrupt:
        assert dies_after < 10
    topic.dies_after = None
    tally = Replay(tmp_path, chunk_records=3).run(topic)
    assert sorted(set(topic.taken)) == values(10)
    twice = len(topic.taken) - 10
    assert twice == (dies_after % 3 if dies_after < 10 else 0)
    assert tally.in_doubt == (0 if dies_after == 10 else 1 if dies_after == 9 else 3)
    assert spool_files(tmp_path) == []
    assert Replay(tmp_path).count().in_doubt == 0


def test_stopped_between_chunks_doubles_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    topic = Topic()
    Replay(tmp_path, chunk_records=4).run(topic, should_stop=lambda: len(topic.taken) >= 4)
    assert topic.taken == values(4)
    Replay(tmp_path, chunk_records=4).run(topic)
    assert topic.taken == values(10)


def test_a_file_that_is_still_written_to_is_read_and_left(tmp_path: Path) -> None:
    fill(tmp_path, 3, close=False)
    topic = Topic()
    Replay(tmp_path).run(topic)
    Replay(tmp_path).run(topic)
    assert topic.taken == values(3)
    assert len(spool_files(tmp_path)) == 1


def test_only_what_was_chosen(tmp_path: Path) -> None:
    fill(tmp_path, 3, topic="orders", seq=1)
    fill(tmp_path, 2, topic="payments", seq=2)
    topic = Topic()
    tally = Replay(tmp_path, wants=lambda letter: letter.topic == "payments").run(topic)
    assert (len(topic.taken), tally.left_out) == (2, 3)
    assert Replay(tmp_path).count().of("orders").found == 3


def test_poison_is_not_sent_again_unless_somebody_insists(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "w", max_bytes=1 << 20, drop_oldest=False)
    poison = group([[None, b"poison"]], code=int(LocalCode.POISON_SUBMISSION))
    writer.append([poison, group([[None, b"good"]], seq=2)])
    writer.close()
    topic = Topic()
    assert Replay(tmp_path).run(topic).poison == 1
    assert topic.taken == [b"good"]
    assert Replay(tmp_path, with_poison=True).run(topic).poison == 0
    assert topic.taken == [b"good", b"poison"]
    assert spool_files(tmp_path) == []


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    tally = Replay(tmp_path).count()
    assert (tally.total("found"), tally.files) == (3, 1)
    assert tally.of("orders").errors
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert Replay(tmp_path / "nothing").count().files == 0


def test_lines_that_are_no_records_are_told_and_kept(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "w", max_bytes=1 << 20, drop_oldest=False)
    writer.append(
        [group([], numbers=range(2), payload=b"\xc1\xc1", indexes=[0, 1]), group([[None, b"good"]], seq=2)]
    )
    writer.close()
    (path,) = spool_files(tmp_path)
    with path.open("ab") as file:
        file.write(b"not json\n")
    topic = Topic()
    tally = Replay(tmp_path).run(topic)
    assert topic.taken == [b"good"]
    assert (tally.total("unreadable"), tally.broken_lines) == (2, 1)
    assert len(path.read_bytes().splitlines()) == 3


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1)

    def second(letters: list[Letter], outcomes: list[str | None]) -> None:
        with pytest.raises(ReplayRunning, match="Another replay"):
            Replay(tmp_path).run(Topic())
        outcomes[:] = [None] * len(letters)

    assert Replay(tmp_path).run(second).total("delivered") == 1


def test_progress_is_forgotten_after_a_day(tmp_path: Path) -> None:
    import os

    fill(tmp_path, 1)
    Replay(tmp_path).run(Topic())
    (progress,) = tmp_path.glob(f"*{SUFFIX}")
    Replay(tmp_path).run(Topic())
    assert progress.exists()
    old = progress.stat().st_mtime - KEPT_S - 1
    os.utime(progress, (old, old))
    Replay(tmp_path).run(Topic())
    assert not progress.exists()


def test_outcomes_that_came_before_the_time_was_out_count(tmp_path: Path) -> None:
    """Two of five are delivered and one fails before flush() gives up: those two are never sent again."""
    fill(tmp_path, 5)
    again = Topic()

    def too_slow(letters: list[Letter], outcomes: list[str | None]) -> None:
        outcomes[:4] = [None, "refused", None, NO_OUTCOME]
        raise TimeoutError("1 record has no outcome")

    work = Replay(tmp_path)
    with pytest.raises(TimeoutError):
        work.run(too_slow)
    assert (work.tally.total("delivered"), work.tally.total("failed")) == (2, 1)
    tally = Replay(tmp_path).run(again)
    assert again.taken == [b"1", b"3", b"4"]
    assert (tally.doubles, tally.in_doubt) == (2, 1), "the fifth was never sent: no doubt about that one"
    assert spool_files(tmp_path) == []
    assert Replay(tmp_path).count().in_doubt == 0


def test_a_file_that_its_writer_closes_meanwhile_is_read_on_and_tidied(tmp_path: Path) -> None:
    """Listed as open, closed before it is read, or between two chunks: nothing breaks off, nothing stays behind."""
    one = SpoolWriter(tmp_path, "one", max_bytes=1 << 20, drop_oldest=False)
    two = SpoolWriter(tmp_path, "two", max_bytes=1 << 20, drop_oldest=False)
    one.append([group([[None, b"%d" % number] for number in range(4)], seq=1)])
    two.append([group([[None, b"%d" % number] for number in range(4, 8)], seq=2)])
    topic = Topic()

    def send(letters: list[Letter], outcomes: list[str | None]) -> None:
        topic(letters, outcomes)
        one.close()
        two.close()

    tally = Replay(tmp_path, chunk_records=2).run(send)
    assert topic.taken == values(8)
    assert tally.files == 2
    assert spool_files(tmp_path) == []


def test_letters_that_come_while_their_file_is_replayed_stay(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "w", max_bytes=1 << 20, drop_oldest=False)
    writer.append([group([[None, b"0"]])])

    def send(letters: list[Letter], outcomes: list[str | None]) -> None:
        outcomes[:] = [None] * len(letters)
        sent.extend(letter.value for letter in letters)
        if len(sent) == 1:
            writer.append([group([[None, b"1"]], seq=2)])
        elif len(sent) == 2:
            writer.append([group([[None, b"2"]], seq=3)])
            writer.close()

    sent: list[bytes | None] = []
    Replay(tmp_path, chunk_records=1).run(send)
    Replay(tmp_path).run(send)
    assert sent == values(3), "by the first replay or by the second"
    assert spool_files(tmp_path) == []


def test_a_file_that_is_removed_meanwhile_stays_removed(tmp_path: Path) -> None:
    """drop_oldest takes one file before it is read, and another while its letters are under way."""
    for seq in (1, 2, 3):
        fill(tmp_path, 2, seq=seq)
    first, second, third = spool_files(tmp_path)
    topic = Topic()

    def send(letters: list[Letter], outcomes: list[str | None]) -> None:
        topic(letters, outcomes)
        outcomes[0] = "refused"  # so that something of the file would stay
        drop_file(first)
        second.unlink(missing_ok=True)

    tally = Replay(tmp_path).run(send)
    assert tally.files == 2
    assert spool_files(tmp_path) == [third]


def test_one_damaged_byte_stops_no_replay(tmp_path: Path) -> None:
    """Any byte of a letter and of the notes of an earlier replay, damaged in turn: the good letters are delivered."""
    fill(tmp_path, 1, seq=1)
    fill(tmp_path, 1, seq=2)
    damaged, good = spool_files(tmp_path)
    whole, notes = damaged.read_bytes(), b"# sending 2\n" + b"ab" * 20 + b"/9/9/9\n# sent\n# sending 1\n"
    kept = good.read_bytes()
    bytes_ = (b"\xff", b"e", b"\0", b"\\", b"9", b" ", b"\x80")
    for at in range(0, len(whole), 4):
        byte = bytes_[at // 4 % len(bytes_)]
        damaged.write_bytes(whole[:at] + byte + whole[at + 1 :])
        good.write_bytes(kept)
        noted = progress_file(good)
        noted.write_bytes(notes[: at % len(notes)] + byte + notes[at % len(notes) + 1 :])
        topic = Topic()
        Replay(tmp_path).run(topic)
        assert b"0" in topic.taken
        for path in tmp_path.glob(f"*{SUFFIX}"):
            path.unlink()


@pytest.mark.parametrize(
    "field",
    [
        '"failed_ms":1e800',
        '"partition":"1"',
        '"partition":true',
        '"topic":"\\ud800"',
        '"id":"a\\nb"',
        '"timestamp_ms":NaN',
        pytest.param('"headers":' + "[" * 100_000, id="deep"),
        pytest.param('"id":' + "9" * 5000, id="long"),
    ],
)
def test_a_letter_that_no_writer_wrote_is_told_and_kept(tmp_path: Path, field: str) -> None:
    fill(tmp_path, 1)
    (path,) = spool_files(tmp_path)
    with path.open("ab") as file:
        file.write(path.read_bytes().rstrip()[:-1] + f",{field}".encode() + b"}\n")
    topic = Topic()
    assert Replay(tmp_path).run(topic).broken_lines == 1
    assert topic.taken == [b"0"]
    assert field.encode() in path.read_bytes()
