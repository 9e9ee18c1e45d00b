"""Goal: a command with --json prints one object on stdout and nothing else, also if it fails; its ``error`` is null
exactly if the exit status is 0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from sidecar.cli.main import cli
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.deadletter.spool import SpoolWriter
from tests.cli.test_dead_letters import left_segment
from tests.deadletter.groups import group


def answer(run_dir: Path, *words: str, stdin: str = "") -> tuple[dict[str, Any], Result]:
    """(the object on stdout, the result)."""
    # A group's --run-dir is its commands', too.
    result = CliRunner().invoke(cli, ["--run-dir", str(run_dir), *words, "--json"], input=stdin)
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    assert (found.get("error") is None) == (result.exit_code == 0), (found, result.exit_code)
    return found, result


@pytest.mark.parametrize(
    "words", [("status",), ("topics",), ("explain",), ("produce", "t"), ("replay",), ("top", "-n", "1")]
)
def test_no_daemon(tmp_path: Path, words: tuple[str, ...]) -> None:
    found, result = answer(tmp_path, *words)
    assert result.exit_code == 69
    assert found["error"].startswith(f"No daemon runs on run dir {tmp_path}: ")
    assert result.stderr == f"{found['error']}\n", "a person sees it, too"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("produce", "t", "--timeout", "x"), "Invalid value for '--timeout': 'x' is not a valid number."),
        (("produce",), "Missing argument 'TOPIC'."),
        (("produce", "t", "--offsets"), "--offsets and --json exclude each other: stdout has one JSON object."),
        (("produce", "t", "--linger.ms=5"), "No such option '--linger.ms': linger.ms is a setting, given as "
         "`kafka-sidecar run -X linger.ms=5`."),
        (("replay", "--since", "yesterday"), "Invalid value for '--since': 'yesterday' is not a time: write 90m, 2h or "
         "1d (ago), or 2026-11-21T03:00."),
        (("recover", "--remove"), "--remove and --spool-only need a FILE: `recover` alone lists the files."),
        (("config", "check", "--nosuch"), "No such option '--nosuch'."),
        (("config", "show", "-X", "linger.ms=x"), 'linger.ms = "x" (-X): must be a whole number, at least 0.'),
        (("doctor", "surplus"), "Got unexpected extra argument (surplus)"),
        (("nosuch",), "No such command 'nosuch'."),
    ],
)  # fmt: skip
def test_wrong_usage(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    found, result = answer(tmp_path, *words)
    assert (result.exit_code, found["error"]) == (2, error)


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("sidecar.cli.topics.ask", interrupted)
    found, result = answer(tmp_path, "topics")
    assert (result.exit_code, found) == (130, {"error": "Stopped."})


def test_config(tmp_path: Path) -> None:
    good = ("-X", "bootstrap.servers=a:1")
    found, _ = answer(tmp_path, "config", "check", *good, "-X", "retry.backoff.ms=5000")
    assert (found["values_set"], found["faults"]) == (2, [])
    assert "retry.backoff.ms (5000) is over" in found["warnings"][0]
    found, result = answer(tmp_path, "config", "check", *good, "-X", "acks=most", "-X", "linger.mss=1")
    assert result.exit_code == 2 and len(found["faults"]) == 2
    assert found["error"] == "\n".join(found["faults"])
    shown, _ = answer(tmp_path, "config", "show", *good)
    assert shown["bootstrap.servers"] == ["a:1"] or shown["bootstrap.servers"] == "a:1"


def test_doctor(tmp_path: Path) -> None:
    found, result = answer(tmp_path, "doctor", "-X", "bootstrap.servers=127.0.0.1:1")
    assert result.exit_code == 1
    assert {each["result"] for each in found["findings"]} <= {"ok", "warn", "fail", "skip"}
    failed = [each["text"] for each in found["findings"] if each["result"] == "fail"]
    assert any("127.0.0.1:1 cannot be connected to" in text for text in failed)
    assert found["error"] == f"{len(failed)} check{'' if len(failed) == 1 else 's'} failed."
    wrong, _ = answer(tmp_path, "doctor", "-X", "linger.mss=1")
    assert any('did you mean "linger.ms"?' in each["text"] for each in wrong["findings"])


def test_replay_looks(tmp_path: Path) -> None:
    folder = RunDir(tmp_path).dead_letters
    SpoolWriter(folder, "w", max_bytes=1 << 20, drop_oldest=False).append(
        [group([[None, b"a"]]), group([[None, b"b"]], seq=2, topic="payments", code=29, persistence=1)]
    )
    found, result = answer(tmp_path, "replay", "--dry-run")
    assert result.stderr == ""
    assert (found["folder"], found["dry_run"]) == (str(folder), True)
    assert {
        name: found[name] for name in ("files", "found", "delivered", "possibly_persisted", "poison")
    } == {
        "files": 1,
        "found": 2,
        "delivered": 0,
        "possibly_persisted": 1,
        "poison": 0,
    }
    assert found["topics"]["payments"]["errors"] == {"TOPIC_AUTHORIZATION_FAILED": 1}
    assert found["topics"]["orders"]["oldest_ms"] > 0


def test_recover(tmp_path: Path) -> None:
    (tmp_path / "segment.json").write_text(json.dumps({"path": str(tmp_path / "pool.segment")}))
    segment = tmp_path / "pool.segment.set-aside-1766287000000"
    left_segment(segment, 40)
    listed, _ = answer(tmp_path, "recover")
    ((path, memory, state, undelivered),) = [
        (each["path"], each["memory_bytes"], each["state"], each["undelivered"])
        for each in listed["segments"]
    ]
    assert (path, state, undelivered) == (str(segment), "set aside", 40) and memory > 0
    looked, _ = answer(tmp_path, "recover", "--dry-run", str(segment))
    assert (looked["undelivered"], looked["topics"], looked["letters"]) == (40, ["orders"], None)
    done, result = answer(tmp_path, "recover", "--remove", str(segment))
    assert result.stderr == ""
    assert (done["undelivered"], done["is_removed"], done["replay"]) == (40, True, None)
    assert Path(done["letters"]).is_file() and not segment.exists()
    gone, result = answer(tmp_path, "recover", str(segment))
    assert result.exit_code == 1 and "No such file" in gone["error"] and gone["undelivered"] == 0
