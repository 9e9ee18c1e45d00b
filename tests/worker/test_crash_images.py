"""Goal: wherever the power is cut, the next boot finds every accepted record, and nothing that nobody sent."""

from __future__ import annotations

import errno
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.shm.accept_log import SPARES_MAX, read_log
from sidecar.shm.segment import Segment
from tests.worker.crash_harness import TOPICS, CrashHarness, boot, check, number_of, numbers_of, payload_of
from tests.worker.power_disk import PowerDisk

IMAGES = 12

sizes = st.one_of(st.integers(0, 300), st.sampled_from([4000, 9000, 20_000]))
actions = st.one_of(
    st.tuples(st.just("accept"), st.sampled_from(TOPICS), sizes, st.integers(1, 3)),
    st.tuples(st.just("end"), st.integers(0, 1 << 16)),
    st.tuples(st.just("work"), st.integers(1, 4)),
    st.tuples(st.just("house")),
)


def create(path: Path) -> Segment:
    return Segment.create(
        path, page_bytes=4096, buffer_memory_bytes=64 * 4096, clients_max=4, instance_id=b"same"
    )


def act(harness: CrashHarness, script: list[tuple[object, ...]], first: int) -> int:
    number = first
    for kind, *arguments in script:
        if kind == "accept":
            topic, size, records = arguments
            number += 1
            harness.accept(str(topic), number, int(str(size)), int(str(records)))
        elif kind == "end":
            if harness.live:
                live = sorted(harness.live)
                harness.end(live[int(str(arguments[0])) % len(live)])
        elif kind == "work":
            for _ in range(int(str(arguments[0]))):
                harness.work()
        else:
            harness.commit.note_endings()
    return number


@pytest.mark.slow
@given(st.lists(st.lists(actions, max_size=40), min_size=1, max_size=3), st.integers(0, 1 << 32))
@settings(max_examples=120, deadline=None)
def test_any_cut(boots: list[list[tuple[object, ...]]], seed: int) -> None:
    cut_anywhere(boots, seed)


@pytest.mark.long
@given(st.lists(st.lists(actions, max_size=120), min_size=1, max_size=5), st.integers(0, 1 << 32))
@settings(max_examples=3000, deadline=None)
def test_any_cut_long(boots: list[list[tuple[object, ...]]], seed: int) -> None:
    cut_anywhere(boots, seed)


def cut_anywhere(boots: list[list[tuple[object, ...]]], seed: int) -> None:
    """Each boot goes on from an image of the one before, in which also the adoption may have been cut."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        segment, disk, known = create(Path(folder) / "0"), PowerDisk(), set[int]()
        number = 0
        names: dict[int, bytes] = {}
        for life, script in enumerate(boots, 1):
            harness = CrashHarness(segment, disk, incarnation=life + 10)
            assert set(harness.live) == known
            number = act(harness, script, number)
            assert all(names.setdefault(each, name) == name for each, name in harness.names.items()), (
                "a submission keeps its name over every crash"
            )
            segment.close()
            for _ in range(IMAGES):
                steps = chance.randint(0, len(disk.steps))
                contents = read_log(PowerDisk(disk.image(steps, chance)), 0)
                check(numbers_of(contents), contents.damage, disk.notes(steps), known)
                for topic in TOPICS:
                    in_order = [number_of(each.payload) for each in contents.entries if each.topic == topic]
                    assert in_order == sorted(in_order), "the order of each stream"
            steps = chance.randint(0, len(disk.steps))
            segment, next_disk, found = boot(Path(folder) / str(life), disk.image(steps, chance))
            check(found, [], disk.notes(steps), known)
            disk, known = next_disk, set(found)
        segment.close()
        assert len(set(names.values())) == len(names), "and no two have the same"


@pytest.mark.parametrize("seed", range(4))
def test_any_cut_while_files_are_used_again(tmp_path: Path, seed: int) -> None:
    """A steady flow through a log of a few files, its ends in another order than its beginnings."""
    chance = random.Random(seed)
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1)
    for number in range(1, 121):
        harness.accept(chance.choice(TOPICS), number, chance.choice([10, 900, 3000]), chance.randint(1, 2))
        for _ in range(chance.randint(0, 2)):
            harness.work()
        while len(harness.live) > 6:
            harness.end(chance.choice(sorted(harness.live)))
        if chance.random() < 0.2:
            harness.commit.note_endings()
    files = {step[1] for step in disk.steps if step[0] == "made"}
    headers = [step for step in disk.steps if step[0] == "write" and step[2] == 0]
    assert len(headers) > len(files) + 5, "files were used again and again"
    for steps in range(0, len(disk.steps), 3):
        contents = read_log(PowerDisk(disk.image(steps, chance)), 0)
        check(numbers_of(contents), contents.damage, disk.notes(steps), set())


def test_endings_are_remembered_and_files_used_again(tmp_path: Path) -> None:
    """A thousand submissions, one of them stuck: it alone is found, and the disk holds a few files."""
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1)
    for number in range(1, 1001):
        harness.accept("a", number, 500, 1)
        harness.settle()
        if number != 7:
            harness.end(number)
    harness.settle()
    assert len(disk.names()) <= 11
    contents = read_log(PowerDisk(disk.image(len(disk.steps), random.Random(1))), 0)
    assert numbers_of(contents) == [7]
    assert not contents.damage


def test_an_entry_that_ends_before_its_group_is_written_is_not_found(tmp_path: Path) -> None:
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1)
    harness.accept("a", 1, 10, 1)
    harness.commit.step()
    harness.end(1)
    harness.settle()
    harness.settle()
    assert read_log(disk, 0).entries == []


def test_a_damaged_frame_is_said_and_what_follows_it_is_found(tmp_path: Path) -> None:
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1)
    for number in (1, 2, 3):
        harness.accept("a", number, 100, 1)
        harness.settle()
    image = disk.image(len(disk.steps), random.Random(1))
    second = payload_of(2, 100, 1)
    (name,) = (each for each, data in image.items() if second in data)
    at = image[name].index(second)
    image[name] = image[name][: at + 20] + b"\xff" + image[name][at + 21 :]
    contents = read_log(PowerDisk(image), 0)
    assert numbers_of(contents) == [1, 3]
    (sentence,) = contents.damage
    assert "cannot be read" in sentence


def test_after_a_failed_sync_nothing_is_accepted_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1)
    harness.accept("a", 1, 10, 1)
    harness.settle()
    disk.fail_sync = errno.EIO
    harness.accept("a", 2, 10, 1)
    harness.settle()
    disk.fail_sync = 0  # a second sync would succeed and mean nothing: the kernel has dropped the pages
    harness.accept("a", 3, 10, 1)
    harness.settle()
    assert harness.told["a"] == 1
    assert "Input/output error" in harness.commit.refusal
    assert harness.counters.get("accept_log_errno") == errno.EIO
    assert "restart the daemon" in caplog.text


def test_a_full_disk_accepts_again_when_it_has_room(tmp_path: Path) -> None:
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1)
    disk.free_bytes_max = 0
    number = 0
    while not harness.commit.refusal:
        number += 1
        harness.accept("a", number, 3000, 1)
        harness.work()
        assert number < 100, "the files at hand are full some day"
    harness.settle()
    assert harness.counters.get("accept_log_errno") == errno.ENOSPC
    told = harness.told["a"]
    assert told < number
    disk.free_bytes_max = 1 << 20
    harness.settle()
    harness.settle()
    assert harness.told["a"] == number and not harness.commit.refusal
    assert harness.counters.get("accept_log_errno") == 0
    contents = read_log(PowerDisk(disk.image(len(disk.steps), random.Random(1))), 0)
    assert numbers_of(contents) == list(range(1, number + 1))


def test_a_disk_that_falls_behind_is_waited_for(tmp_path: Path) -> None:
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1, pending_bytes_max=8_000)
    number = 0
    while not harness.commit.refusal:
        number += 1
        harness.accept("a", number, 1_000, 1)
        assert number < 100, "what waits for the disk has a bound"
    assert "does not keep up" in harness.commit.refusal
    assert number * 1_100 > 8_000 and (number - 2) * 1_000 < 8_000, "one submission beyond it and no more"
    harness.settle()
    assert harness.told["a"] == number and not harness.commit.refusal


def test_files_kept_to_be_used_again_have_a_bound(tmp_path: Path) -> None:
    disk = PowerDisk()
    harness = CrashHarness(create(tmp_path / "0"), disk, incarnation=1)
    # More at once than the spares hold, then all of it over: the files go back.
    for number in range(1, 41):
        harness.accept("a", number, 5_000, 1)
        harness.work()
    before = len(disk.names())
    for number in sorted(harness.live):
        harness.end(number)
    harness.accept("a", 41, 0, 1)
    harness.settle()
    harness.settle()
    left = len(disk.names())
    assert before > SPARES_MAX + 2 and left <= SPARES_MAX + 2, (before, left)
    assert numbers_of(read_log(disk, 0)) == [41]
