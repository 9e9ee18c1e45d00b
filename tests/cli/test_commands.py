"""Goal: each command says one clear sentence and ends with the status the contract names. No daemon runs here."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from sidecar.cli.explain import describe
from sidecar.cli.main import COMMANDS, cli
from sidecar.cli.options import LONGEST_TIMEOUT_S
from sidecar.cli.status import ask_for_a_sign
from sidecar.common.model import ExitStatus
from sidecar.config.settings import SETTINGS
from sidecar.controller.rundir.run_dir import RunDir


def invoke(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, list(words), input=stdin, prog_name="kafka-sidecar")


@pytest.mark.parametrize("words", [(), ("config",), *((name,) for name in COMMANDS), ("config", "show")])
def test_help_has_examples(words: tuple[str, ...]) -> None:
    """A terminal has 80 columns as often as not, and an example that wraps cannot be copied."""
    result = invoke(*words, "--help")
    assert [line for line in result.output.splitlines() if len(line) > 80] == []
    assert result.exit_code == 0
    if words != ("config",):
        assert "kafka-sidecar " in result.output.split("Options:")[0].split("\n", 1)[1]


def test_the_list_of_commands_is_not_cut() -> None:
    listed = invoke("--help").output.split("Commands:")[1]
    assert "..." not in listed
    assert "produce   Send the records of FILE (or stdin) to TOPIC and wait until Kafka" in listed


@pytest.mark.parametrize("words", [("status",), ("topics",), ("produce", "t"), ("top",)])
def test_no_daemon_is_69_and_says_how_to_start_one(words: tuple[str, ...], tmp_path: Path) -> None:
    result = invoke(words[0], "--run-dir", str(tmp_path), *words[1:])
    assert result.exit_code == 69
    assert str(tmp_path) in result.stderr
    assert "kafka-sidecar run" in result.stderr
    assert result.stderr.count("\n") == 1


def test_run_dir_of_the_root_counts_too(tmp_path: Path) -> None:
    assert str(tmp_path) in invoke("--run-dir", str(tmp_path), "status").stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("frobnicate",), "No such command"),
        (("stats",), "No such command 'stats': did you mean status?"),
        (("start",), "No such command 'start': did you mean run?"),
        (("version",), "No such command 'version': did you mean --version?"),
        (("stop",), "No such command 'stop': SIGTERM or Ctrl-C ends `kafka-sidecar run`"),
        (
            ("run", "--linger.ms=5"),
            "No such option '--linger.ms': linger.ms is a setting, given as -X linger.ms=5.",
        ),
        (("run", "--bootstrap-servers", "a:1"), "given as -X bootstrap.servers=a:1."),
        (("run", "--workers", "-v"), "daemon.workers is a setting, given as -X daemon.workers=VALUE."),
        (("doctor", "--broker.list=a:1"), "given as -X bootstrap.servers=a:1."),
        (("status", "--linger.ms"), "given as `kafka-sidecar run -X linger.ms=VALUE`."),
        (("config", "check", "--acks=1"), "given as -X acks=1."),
        (("status", "--nothing.of.it=1"), "No such option '--nothing.of.it'"),
        (("run", "-X", "linger.mss=1"), 'did you mean "linger.ms"?'),
        (("run", "-c", "/nowhere.toml"), "does not exist"),
        (("config", "check", "-X", "acks=most"), "one of all"),
        (("produce",), "Missing argument"),
        (("produce", "t", "--format", "xml"), "'xml' is not one of"),
        (("produce", "t", "--key", "k"), "--key needs --format"),
        (("produce", "t", "--key-separator", ":", "--fixed-key", "k"), "exclude each other"),
        (
            ("produce", "t", "--key-separator", ":", "--format", "csv"),
            "--key-separator is for --format lines",
        ),
        (("produce", "t", "--header", "novalue"), "must be NAME=VALUE"),
        (("produce", "t", "--delimiter", ""), "--delimiter must not be empty"),
        (("produce", "t", "--delimiter", r"\x0"), r"--delimiter '\\x0': invalid \x escape"),
        (("produce", "t", "--delimiter", ";", "--format", "csv"), "--delimiter is for --format lines"),
        (("produce", "t", "--timestamp", "soon"), "must be milliseconds since 1970, or a time such as"),
        (("produce", "t", "--timestamp", "1960-01-01T00:00:00Z"), "must not be before 1970"),
        (("produce", "t", "--key", "k", "--format", "whole"), "--key needs --format"),
        (("produce", "t", "--timeout", "-1"), "-1.0 is not in the range"),
        (("demo", "--mock", "--bootstrap-servers", "a:1"), "exclude each other"),
    ],
)
def test_wrong_usage_is_2(words: tuple[str, ...], sentence: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_config_check() -> None:
    good = invoke("config", "check", "-X", "bootstrap.servers=a:1", "-X", "retry.backoff.ms=5000")
    assert good.exit_code == 0
    assert "2 values set" in good.stdout
    assert "retry.backoff.ms (5000) is over" in good.stderr


def test_config_show_can_be_used_as_a_file(tmp_path: Path) -> None:
    shown = invoke("config", "show", "-X", "linger.ms=17")
    document = tomllib.loads(shown.stdout)
    assert document["kafka"]["linger.ms"] == 17
    assert {row.table for row in SETTINGS} == set(document)
    file = tmp_path / "sidecar.toml"
    file.write_text(shown.stdout)
    assert invoke("config", "check", "-c", str(file)).exit_code == 0
    again = invoke("config", "show", "-c", str(file), "--json")
    assert json.loads(again.stdout)["linger.ms"] == 17


def test_config_show_hides_tokens() -> None:
    for words in ((), ("--json",)):
        shown = invoke("config", "show", "-X", "clients.billing.token=s3cret", *words).stdout
        assert "billing" in shown
        assert "s3cret" not in shown


def test_doctor_names_what_fails(tmp_path: Path) -> None:
    result = invoke("doctor", "--run-dir", str(tmp_path), "-X", "bootstrap.servers=127.0.0.1:1")
    assert result.exit_code == 1
    assert "FAIL  127.0.0.1:1 cannot be connected to" in result.stdout


def test_without_the_daemon_extra() -> None:
    """The console script starts on the standard library and says what is missing."""
    program = "import sys; sys.modules['click'] = None; sys.argv = ['kafka-sidecar']\n"
    program += "import importlib.util as u; found = u.find_spec\n"
    program += "u.find_spec = lambda name, *a: None if name == 'click' else found(name, *a)\n"
    program += "from sidecar.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install 'kafka-sidecar[daemon]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_alive_needs_a_worker_that_is_ready(tmp_path: Path) -> None:
    info = {"sentence": "No worker is ready. Worker 0 died.", "workers": [{"state": "starting"}]}
    with pytest.raises(SystemExit) as ended:
        ask_for_a_sign(RunDir(tmp_path), info)
    assert ended.value.code == 1


def test_no_name_that_explain_shows_steers_the_terminal() -> None:
    """Of a daemon that hangs the names come from its segment, as clients gave them."""
    name = "orders\x1b[2J\n"
    found = {
        "is_answered": False,
        "is_known": True,
        "waiting": [{"topic": name, "cause": "held", "text": "in the journal now", "bytes": 5}],
        "clients": [],
        "failures": [],
        "silent_workers": [],
    }
    lines = describe(found, "")
    assert all(line.isprintable() for line in lines)
    assert any("orders\\x1b[2J\\n" in line for line in lines)


def test_a_partition_that_two_workers_hold_has_a_line_for_each() -> None:
    row = {
        "topic": "orders",
        "cause": "broker",
        "text": "broker 2 is down",
        "records": 5,
        "since_seconds": 9.0,
    }
    waiting = [{**row, "partition": 1, "worker": worker} for worker in (0, 1)]
    waiting.append({**row, "partition": 2, "worker": 0})
    found = {"is_answered": True, "is_known": True, "waiting": waiting, "clients": [], "failures": []}
    lines = describe({**found, "silent_workers": []}, "")
    places = [line.split("  ")[0] for line in lines]
    assert places == ["orders-1 (worker 0)", "orders-1 (worker 1)", "orders-2"]


@pytest.mark.parametrize("command", ["reload", "drain", "explain", "topics", "replay", "produce"])
def test_a_timeout_has_a_bound(command: str) -> None:
    words = [command, *(["t"] if command == "produce" else []), "--timeout"]
    for wrong in (LONGEST_TIMEOUT_S + 1, -1, "inf", "nan"):
        shown = CliRunner().invoke(cli, [*words, str(wrong)])
        assert shown.exit_code == 2 and "is not in the range" in shown.stderr, (wrong, shown.output)


def test_ctrl_c_ends_a_command_as_shells_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("sidecar.cli.topics.ask", interrupted)
    shown = CliRunner().invoke(cli, ["topics"])
    assert (shown.exit_code, shown.stderr) == (130, "Stopped.\n")


def test_a_file_is_no_run_dir(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    shown = invoke("status", "--run-dir", str(path))
    assert (shown.exit_code, shown.stderr) == (
        ExitStatus.USAGE,
        f"{path} is a file, not a run dir: name its folder with --run-dir.\n",
    )


def test_options_that_need_a_file_are_not_dropped_in_silence(tmp_path: Path) -> None:
    shown = invoke("recover", "--run-dir", str(tmp_path), "--remove")
    assert shown.exit_code == ExitStatus.USAGE and "--remove and --spool-only need a FILE" in shown.stderr


def test_a_setting_above_all_tables_is_sent_to_its_table(tmp_path: Path) -> None:
    """linger.ms = 1 is a table to TOML, so the error spoke of an unknown table [linger]."""
    path = tmp_path / "sidecar.toml"
    path.write_text("linger.ms = 1\n")
    shown = invoke("run", "-c", str(path))
    assert shown.stderr == f'"linger.ms" ({path}) is outside of any table: put it under [kafka].\n'
    shown = invoke("run", "-c", str(tmp_path))
    assert shown.stderr == f"Configuration file {tmp_path} cannot be read: Is a directory.\n"


def test_a_number_is_called_a_number() -> None:
    shown = invoke("produce", "t", "--timeout", "x")
    assert "'x' is not a valid number." in shown.stderr
