"""Doctor on a host that lacks something: each check by itself, on real folders, limits and sockets."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.doctor import _limits, _memory, _run_dir, doctor
from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError, SidecarConfig
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.doctor.clock import clock_findings, judge_clock


def config(**settings: object) -> SidecarConfig:
    overrides = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    return load_config(None, overrides, environment={}, need_servers=False)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[RunDir]:
    """A run dir that a daemon (this process) holds."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.acquire()
    yield run_dir
    run_dir.release(forget_segment=False)


def found(findings: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(mark, text) for mark, text in findings]


def test_another_system_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("eventfd", "memfd_create", "pidfd_open", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    done = CliRunner().invoke(doctor, ["--run-dir", str(tmp_path)])
    assert isinstance(done.exception, SystemExit)
    assert "FAIL  This is darwin: the daemon runs on Linux only.\n" in done.output


def test_a_pool_that_does_not_fit_is_named_with_both_sizes(tmp_path: Path) -> None:
    ((mark, text), *_) = found(_memory(config(buffer__memory=1 << 50), RunDir(tmp_path)))
    assert mark == "FAIL" and f"buffer.memory needs {1 << 30:,} MiB" in text


def test_the_pool_of_a_running_daemon_is_its_own(held: RunDir) -> None:
    """Its -X and variables are not known here, so buffer.memory may be another one."""
    held.files.publish({"pool": {"pages": 1024, "page_bytes": 16384}})
    ((mark, text), *_) = found(_memory(config(), held))
    assert mark == "ok" and "the pool of the running daemon is 16 MiB" in text


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    settings = config(pool__path=tmp_path / "absent" / "pool")
    ((mark, text),) = found(_memory(settings, RunDir(tmp_path)))
    assert mark == "FAIL" and "does not exist" in text


def test_few_open_files_and_many_workers_are_warned_of(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        findings = found(_limits(config(daemon__workers=64), RunDir(tmp_path)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [mark for mark, _ in findings] == ["warn", "warn"][: 1 + (len(os.sched_getaffinity(0)) < 64)]
    assert "At most 256 open files" in findings[0][1]


def test_a_daemon_that_takes_no_records_is_named_with_its_sentence(held: RunDir) -> None:
    info = {"takes_records": False, "sentence": "Kafka is unreachable.", "held_slots": [1]}
    held.files.daemon_json.write_text(json.dumps(info))
    marks = found(_run_dir(config(), held))
    assert [mark for mark, _ in marks] == ["FAIL", "warn"]
    assert "Kafka is unreachable." in marks[0][1]


def test_a_segment_of_an_earlier_daemon_is_warned_of(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    segment = tmp_path / "segment"
    segment.touch()
    run_dir.files.segment_json.write_text(json.dumps({"path": str(segment)}))
    assert [mark for mark, _ in found(_run_dir(config(), run_dir))] == ["ok", "warn"]


def test_a_clock_that_nothing_keeps_is_warned_of() -> None:
    assert judge_clock(0x40, 16_000_000).mark == "warn"
    assert judge_clock(0x2001, 1_500) == ("ok", "The clock is kept by NTP, with an error of at most 0.002 s.")
    assert [each.mark in {"ok", "warn"} for each in clock_findings()] == [True]


def test_servers_that_are_given_and_empty_are_a_fault() -> None:
    """It tried localhost:9092, and `config check` said that they are not set."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is not set"):
        config(bootstrap__servers="")
    assert config().words("bootstrap.servers") == ["localhost:9092"], "for settings that are only shown"
