"""Goal: a part that fails is named, and nothing that was measured is lost by it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.tools.bench.bed import daemon_before, null_broker
from sidecar.tools.bench.main import BASE, Run
from sidecar.tools.bench.measurement import Failure, Results
from sidecar.tools.bench.report import to_markdown
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.kafka_jars import KafkaUnavailable, kafka_version
from sidecar.tools.testing.waiting import wait_until


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("confluent: only 3 of 4 records"), "confluent: only 3 of 4 records"),
        (KafkaUnavailable("No Maven found."), "No Maven found."),
        (subprocess.CalledProcessError(3, "jmx"), "CalledProcessError: Command 'jmx' returned"),
        (TimeoutError("no answer"), "TimeoutError: no answer"),
    ],
)
def test_a_failed_part_keeps_its_own_measurements_and_lets_the_next_one_run(
    error: Exception, said: str
) -> None:
    def fails_in_its_second_round() -> None:
        results.add("one caller", "rate", "ours", "1/s", [100.0])
        raise error

    results = Results()
    run = Run(Steps(), results, ["first", "second"])
    run.part("first", fails_in_its_second_round)
    run.part("second", lambda: results.add("one caller", "rate", "ours", "1/s", [300.0]))
    run.part("third", lambda: results.note("nobody asked for it"))

    assert [failure.part for failure in results.failures] == ["first"]
    assert results.failures[0].error.startswith(said)
    assert [each.values for each in results.measurements] == [(100.0, 300.0)]
    assert not results.notes
    assert f"**Failed:** first: {said}" in to_markdown(results)


def test_an_interrupt_is_no_failed_part() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    run = Run(Steps(), Results(), ["first"])
    with pytest.raises(KeyboardInterrupt):
        run.part("first", interrupted)
    assert run.results.failures == []


@pytest.mark.process
def test_the_command_writes_what_there_is_and_exits_1(tmp_path: Path) -> None:
    """A Java that runs nothing: the broker does not start, after the kernel's walks were measured."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\necho \'openjdk version "17.0.1"\' >&2\ntest "$1" = -version\n')
    java.chmod(0o755)
    (tmp_path / "demo" / f"kafka-{kafka_version()}").mkdir(parents=True)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sidecar",
            "bench",
            *("--only", "kernel", "--only", "idle"),
            *("--json-file", str(tmp_path / "b.json")),
            *("--markdown", str(tmp_path / "b.md")),
            *("--plots", str(tmp_path / "plots")),
        ],
        env={
            **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
            **{"PATH": f"{java.parent}:/usr/bin:/bin", "KAFKA_SIDECAR_DEMO_DIR": str(tmp_path / "demo")},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "b.json").read_text())
    assert {each["section"] for each in found["measurements"]} == {"kernel"}
    (failure,) = (Failure(**each) for each in found["failures"])
    assert failure.part == BASE
    assert "Kafka" in failure.error
    assert done.stdout.rstrip().endswith(failure.error.rstrip())
    assert "**kernel**" in (tmp_path / "b.md").read_text()
    assert BASE in done.stderr


@pytest.mark.process
def test_an_error_carries_what_the_daemon_warned_of() -> None:
    with null_broker({"t": 1}) as address, daemon_before(address) as site:
        with pytest.raises(RuntimeError, match=r"^the caller failed$"), site.explained():
            raise RuntimeError("the caller failed")
        os.kill(site.daemon.worker_pids()[0], signal.SIGKILL)
        wait_until(lambda: any(" WARNING " in line for line in site.daemon.log_lines()), "its warning")
        said = r"^the caller failed\nThe daemon's last warnings:\n.+ WARNING .+ replaced"
        with pytest.raises(RuntimeError, match=said), site.explained():
            raise RuntimeError("the caller failed")
