"""Goal: what `replay` and `recover` say where no daemon runs, and with which status they end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner, Result

from sidecar.cli.main import cli
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import spool_files
from sidecar.shm import layout
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.segment import Segment
from tests.deadletter.groups import group


def invoke(run_dir: Path, command: str, *words: str) -> Result:
    return CliRunner().invoke(cli, [command, "--run-dir", str(run_dir), *words], prog_name="kafka-sidecar")


def left_segment(path: Path, records: int) -> None:
    """Remains of a daemon that was killed with unsent records of topic ``orders``."""
    segment = Segment.create(
        path, page_bytes=16_384, buffer_memory_bytes=1 << 20, clients_max=16, instance_id=b"i" * 16
    )
    segment.prepare_slot(0)
    segment.slot(0).claim(incarnation=1)
    pool = BufferPool(segment, incarnation=1, workers=1, slot=0)
    chain = ChainTable(segment, 0, incarnation=1).open(0, "orders")
    assert chain is not None
    payload = b"".join(msgpack.packb([None, b"%d" % number]) for number in range(records))
    pages = pool.take(chain.pages_needed(records, len(payload)))
    assert pages
    chain.link_pages(pages)
    chain.append(
        payload,
        count=records,
        client_row=0,
        client_generation=1,
        stream=1,
        seq=1,
        base_timestamp_ms=1_700_000_000_000,
        format=1,
        flags=0,
    )
    segment.close()


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "pool.segment.set-aside-1766287000000"
    left_segment(path, 40)
    return path


def test_replay_needs_a_daemon_and_a_look_does_not(tmp_path: Path) -> None:
    assert invoke(tmp_path, "replay").exit_code == 69
    folder = RunDir(tmp_path).dead_letters
    SpoolWriter(folder, "w", max_bytes=1 << 20, drop_oldest=False).append(
        [group([[None, b"a"]]), group([[None, b"b"]], seq=2, topic="payments", code=29, persistence=1)]
    )
    shown = invoke(tmp_path, "replay", "--dry-run")
    assert shown.exit_code == 0
    first, head, orders, payments, maybe = shown.output.splitlines()
    assert first == f"2 dead letters in 1 file of {folder}"
    assert head.split() == ["topic", "records", "bytes", "oldest", "newest", "why", "they", "were", "there"]
    assert orders.split()[:4] == ["orders", "1", "1", "B"]
    assert payments.endswith("TOPIC_AUTHORIZATION_FAILED 1")
    assert maybe.startswith("1 of them may have been in their topics already")
    chosen = invoke(tmp_path, "replay", "--dry-run", "--topic", "orders", "--certain-only", "--since", "1h")
    assert chosen.output.startswith("1 dead letter in")
    assert "1 others were not chosen" in chosen.output
    assert invoke(tmp_path, "replay", "--dry-run", "--since", "2999-01-01").output.startswith(
        "0 dead letters"
    )
    assert invoke(tmp_path, "replay", "--since", "yesterday").exit_code == 2


def test_recover_lists_and_says_what_is_in_a_file(tmp_path: Path, segment: Path) -> None:
    assert "No segment of run dir" in invoke(tmp_path, "recover").output
    (tmp_path / "segment.json").write_text(json.dumps({"path": str(tmp_path / "pool.segment")}))
    listed = invoke(tmp_path, "recover")
    assert listed.exit_code == 0
    assert f"{segment}" in listed.output
    assert "set aside  40 undelivered, 0 failed and unacked" in listed.output
    looked = invoke(tmp_path, "recover", "--dry-run", str(segment))
    assert looked.exit_code == 0
    assert "undelivered                   40" in looked.output
    assert not RunDir(tmp_path).dead_letters.exists()


def test_recover_without_a_daemon_makes_dead_letters(tmp_path: Path, segment: Path) -> None:
    before = segment.read_bytes()
    done = invoke(tmp_path, "recover", str(segment))
    assert done.exit_code == 0
    assert "`kafka-sidecar replay` sends them" in done.output
    assert segment.read_bytes() == before
    again = invoke(tmp_path, "recover", "--remove", str(segment))
    assert again.exit_code == 0
    assert not segment.exists()
    (letters,) = spool_files(RunDir(tmp_path).dead_letters)
    assert len(letters.read_bytes().splitlines()) == 40
    shown = invoke(tmp_path, "replay", "--dry-run")
    assert "orders       40" in shown.output
    assert "NOT_DELIVERED 40" in shown.output


def test_recover_takes_the_next_daemon_s_segment_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "pool.segment"
    left_segment(path, 3)
    (tmp_path / "segment.json").write_text(json.dumps({"path": str(path)}))
    refused = invoke(tmp_path, "recover", str(path))
    assert refused.exit_code == 2
    assert "start that to deliver it" in refused.stderr
    assert invoke(tmp_path, "recover", "--remove", "--spool-only", str(path)).exit_code == 0
    assert not path.exists()


def test_recover_keeps_what_it_could_not_read_wholly(tmp_path: Path, segment: Path) -> None:
    with Segment.attach(segment).view as view:
        places = layout.Layout.of(page_bytes=16_384, page_count=64, clients_max=16)
        position = places.pages + 64 + 4
        view[position : position + 4] = b"\xff\xff\xff\xff"
    done = invoke(tmp_path, "recover", "--remove", str(segment))
    assert done.exit_code == 1
    assert "1  places" in done.output
    assert "is kept: not all of it could be read" in done.output
    assert segment.exists()


def test_recover_of_what_is_no_segment(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    done = invoke(tmp_path, "recover", str(other))
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "does not begin" in done.stderr or "less than a header" in done.stderr


def test_recover_lists_no_file_that_somebody_planted_in_dev_shm(tmp_path: Path) -> None:
    """Anybody may make names there: a pipe would block who opens it, another user's file says what that one wants."""
    usual = RunDir(tmp_path).default_segment_path("planted0")
    planted = [
        usual,
        usual.with_name(f"{usual.name}.set-aside-1"),
        usual.with_name(f"{usual.name}.set-aside-2"),
    ]
    try:
        os.mkfifo(planted[0])
        planted[1].symlink_to(tmp_path)
        planted[2].touch()
        if os.geteuid() == 0:
            os.chown(planted[2], 65_534, -1)
        else:
            planted[2].unlink()
        done = CliRunner().invoke(cli, ["recover", "--run-dir", str(tmp_path)])
    finally:
        for path in planted:
            path.unlink(missing_ok=True)
    assert done.exit_code == 0 and "No segment of run dir" in done.output
