"""Goal: status, topics, produce and top against a running daemon, on the mock broker."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.cli.common import daemon_info
from sidecar.cli.status import STATE_EXITS
from sidecar.controller.rundir.run_dir import RunDir
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon, cli
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import http_address, http_get, metric
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def daemon(mock_broker: MockBroker) -> Iterator[SidecarDaemon]:
    """One for all tests that leave it as it is."""
    with SidecarDaemon(mock_broker.bootstrap_servers) as daemon:
        yield daemon


def test_status_and_page_tell_the_same(daemon: SidecarDaemon) -> None:
    # It takes records with the first worker; with the last one it is not degraded any more.
    wait_until(lambda: daemon.info()["state"] == "running", "all workers")
    shown = daemon.status()
    assert shown["takes_records"] is True
    assert [worker["state"] for worker in shown["workers"]] == ["ready", "ready"]
    text = daemon.command("status")
    assert text.returncode == 0
    assert text.stdout.startswith("running for ")
    with urllib.request.urlopen(f"{http_address(daemon)}/status.json", timeout=10) as answer:
        page = json.load(answer)
    # Values that move between two looks: counters, heartbeats, ages, a standby that has only just come.
    moving: dict[str, object] = {
        "counters": {},
        "workers": [],
        "brokers": [],
        "standby": None,
        "reported_ms": 0,
    }
    assert page | moving == shown | moving


def test_a_broker_whose_port_is_closed_is_nowhere_called_up(start_daemon: StartDaemon) -> None:
    """Kafka names it, and no record needs it: it may be up, and nobody here can say so."""
    with FakeBroker({"smoke": 4}, nodes=2) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers)
        sent = daemon.command("produce", "smoke", "--partition", "1", stdin=b"v\n")
        assert sent.returncode == 0, sent.stderr

        def second() -> dict[str, object]:
            found: dict[str, object] = json.loads(http_get(daemon, "/api/status"))["brokers"][1]
            return found

        wait_until(lambda: second()["state"] == "up", "both brokers", describe=daemon.log_tail)
        assert 'kafka_sidecar_broker_up{broker="2"} 1.0' in http_get(daemon, "/metrics")
        kafka.stop_listening(2)
        kafka.disconnect(2)
        wait_until(lambda: second()["state"] == "known", "the loss", describe=daemon.log_tail)
        assert 'kafka_sidecar_broker_up{broker="2"}' not in http_get(daemon, "/metrics")
        text = daemon.command("status").stdout
        assert "(2 brokers, 1 connected)" in text
        assert re.search(
            r"broker 2  known, not connected to for \d+ s, and no record waits for it: .*closed", text
        )
        assert re.search(
            r"^broker +2 .* known, not connected ", daemon.command("top", "-n", "1").stdout, re.M
        )


def test_the_time_in_a_state_grows_without_news_of_the_daemon(
    daemon: SidecarDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """daemon.json is written on changes only."""
    run_dir = RunDir(daemon.run_dir)
    (early, *_) = daemon_info(run_dir)["brokers"]
    later = time.time() + 3_600
    monkeypatch.setattr("time.time", lambda: later)
    (late, *_) = daemon_info(run_dir)["brokers"]
    assert late["since_seconds"] - early["since_seconds"] > 3_500


def test_alive_while_kafka_is_away_and_not_when_stopped_or_gone(start_daemon: StartDaemon) -> None:
    """A health check that fails restarts the daemon: only where that could help."""
    daemon = start_daemon("127.0.0.1:1", wait=False)
    alive = ("status", "--alive")
    wait_until(lambda: daemon.command(*alive).returncode == 0, "a sign", describe=daemon.log_tail)
    assert daemon.command("status").returncode == 1  # no record can be delivered
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    hangs = daemon.command(*alive)
    assert (hangs.returncode, hangs.stderr.count(f"kill -CONT {daemon.process.pid}")) == (75, 1), "at once"
    daemon.process.send_signal(signal.SIGCONT)
    wait_until(lambda: daemon.command(*alive).returncode == 0, "a sign again")
    daemon.kill_all()
    assert daemon.command(*alive).returncode == 69


def test_topics(daemon: SidecarDaemon) -> None:
    named = daemon.command("topics", "smoke")
    assert named.returncode == 0
    assert "smoke  6 partitions" in named.stdout
    assert len(json.loads(daemon.command("topics", "--json", "smoke").stdout)["smoke"]["partitions"]) == 6
    unknown = daemon.command("topics", "smoke", "nosuch")
    assert unknown.returncode == 1
    assert "nosuch  cannot be used: UNKNOWN_TOPIC_OR_PARTITION" in unknown.stdout


def test_produce(daemon: SidecarDaemon, tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text("carrier,flight\n" + "".join(f"UA,{n}\n" for n in range(500)))
    before = metric(daemon, "kafka_sidecar_records_delivered_total")
    sent = daemon.command("produce", "smoke", str(file), "--key", "carrier")
    assert sent.returncode == 0, sent.stderr
    assert sent.stderr.startswith("500 records delivered to smoke in ")
    assert metric(daemon, "kafka_sidecar_records_delivered_total") == before + 500


def test_produce_says_what_failed_and_keeps_what_was_sent(daemon: SidecarDaemon) -> None:
    bad = daemon.command("produce", "smoke", "--format", "jsonl", stdin=b'{"a": 1}\nnot json\n{"a": 2}\n')
    assert bad.returncode == 1
    assert "1 record delivered" in bad.stderr
    assert "stdin, line 2: not JSON" in bad.stderr
    assert "Nothing after it was sent." in bad.stderr
    large = daemon.command("produce", "smoke", stdin=b"x" * 2_000_000)
    assert large.returncode == 1
    assert "max.request.size" in large.stderr
    missing = daemon.command("produce", "smoke", "/nowhere/file")
    assert missing.returncode == 2
    assert "No such file" in missing.stderr
    for each in (bad, large, missing):
        assert "Traceback" not in each.stderr


def test_produce_as_json(daemon: SidecarDaemon) -> None:
    sent = daemon.command("produce", "smoke", "--json", stdin=b"a\nb\n")
    found = json.loads(sent.stdout)
    assert found.pop("seconds") > 0 and sent.returncode == 0
    assert found == {
        "topic": "smoke",
        "source": "stdin",
        "format": "lines",
        "sent": 2,
        "delivered": 2,
        "failed": 0,
        "without_outcome": 0,
        "failures": [],
        "error": None,
    }
    bad = daemon.command("produce", "smoke", "--format", "jsonl", "--json", stdin=b"1\n{\n")
    found = json.loads(bad.stdout)
    assert (bad.returncode, found["sent"], found["delivered"]) == (1, 1, 1)
    assert found["error"].startswith("stdin, line 2: not JSON") and found["error"] in bad.stderr
    usage = daemon.command("produce", "smoke", "/nowhere/file", "--json")
    assert (usage.returncode, json.loads(usage.stdout)["sent"]) == (2, 0)


def test_produce_of_a_compressed_file(daemon: SidecarDaemon, tmp_path: Path) -> None:
    """Its bytes went out as lines, with exit status 0."""
    file = tmp_path / "events.csv.gz"
    file.write_bytes(gzip.compress(b"a,b\n1,2\n3,4\n"))
    sent = daemon.command("produce", "smoke", str(file), "--json")
    found = json.loads(sent.stdout)
    assert (sent.returncode, found["format"], found["delivered"]) == (0, "csv", 2)
    file.write_bytes(lzma.compress(b"a,b\n1,2\n"))
    refused = daemon.command("produce", "smoke", str(file))
    assert refused.returncode == 1
    assert f"{file}: is compressed by xz: write `xz -dc FILE | kafka-sidecar" in refused.stderr


def test_produce_with_keys_headers_partition_and_nulls(start_daemon: StartDaemon) -> None:
    with FakeBroker({"smoke": 4}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers)
        shape = ("--header", "a=1", "--header", "b=x=y", "--partition", "3", "--empty-as-null")
        sent = daemon.command("produce", "smoke", "--key-separator", ":", *shape, stdin=b"k1:v:1\nk2:\n")
        assert sent.returncode == 0, sent.stderr
        fixed = daemon.command("produce", "smoke", "--fixed-key", "k3", "--partition", "3", stdin=b"v3\n")
        assert fixed.returncode == 0, fixed.stderr
        headers = [("a", b"1"), ("b", b"x=y")]
        assert [(each.key, each.value, list(each.headers)) for each in kafka.records("smoke", 3)] == [
            (b"k1", b"v:1", headers),
            (b"k2", None, headers),
            (b"k3", b"v3", []),
        ]
        beyond = daemon.command("produce", "smoke", "--partition", "4", stdin=b"v\n")
        assert beyond.returncode == 2, "not a minute later"
        assert beyond.stderr == "--partition 4: topic smoke has partitions 0 to 3.\n"
        broken = daemon.command("produce", "smoke", "--key-separator", ":", stdin=b"k:v\nnone\n")
        assert broken.returncode == 1
        assert (
            "stdin, line 2: has no ':' between a key and a value. Nothing after it was sent." in broken.stderr
        )


def test_produce_with_times_delimiters_whole_files_and_offsets(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    with FakeBroker({"smoke": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers)
        cut = daemon.command(
            "produce", "smoke", "--delimiter", r";\x00é", "--timestamp", "1700000000123", "--offsets",
            stdin="a\n;\0é;\0éb;\0é".encode(),
        )  # fmt: skip
        assert (cut.returncode, cut.stdout) == (0, "smoke\t0\t0\nsmoke\t0\t1\nsmoke\t0\t2\n"), cut.stderr
        picture = tmp_path / "picture"
        picture.write_bytes(b"\n\r\n\0" * 30_000)
        whole = daemon.command(
            "produce",
            "smoke",
            str(picture),
            "--format",
            "whole",
            "--timestamp",
            "2026-11-22T12:00:00.5+01:00",
        )
        assert (whole.returncode, whole.stdout) == (0, ""), whole.stderr
        assert [(each.value, each.timestamp_ms) for each in kafka.records("smoke", 0)] == [
            (b"a\n", 1_700_000_000_123),
            (b"", 1_700_000_000_123),
            (b"b", 1_700_000_000_123),
            (picture.read_bytes(), 1_795_345_200_500),
        ]


@pytest.mark.parametrize(
    "words", [("produce", "smoke", "--offsets"), ("topics",), ("status",), ("replay", "--dry-run")]
)
def test_a_full_output_is_one_sentence(daemon: SidecarDaemon, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*cli(words[0]), "--run-dir", str(daemon.run_dir), *words[1:]],
            input=b"a\n",
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    last = done.stderr.decode().splitlines()[-1]
    assert last.endswith("could not be written: No space left on device.") or last == (
        "The offsets could not be printed: No space left on device."
    )
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


def test_produce_says_that_the_topic_is_missing(start_daemon: StartDaemon) -> None:
    with FakeBroker({"smoke": 1}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"max.block.ms": 3_000})
        late = daemon.command("produce", "nosuch", "--timeout", "30", "--json", stdin=b"a\n")
    assert late.returncode == 1
    first, *_ = late.stderr.splitlines()
    assert first.startswith(
        "1 record for topic nosuch has waited 2 s: topic nosuch is not in Kafka's metadata yet."
    )
    assert "is not present in Kafka yet" not in late.stderr, "said once"
    found = json.loads(late.stdout)
    assert (found["failed"], found["without_outcome"], found["error"]) == (1, 0, "1 record failed.")
    assert [each["records"] for each in found["failures"]] == [1]
    assert (
        "1 record failed: Topic nosuch not present in metadata after 3000 ms (max.block.ms)." in late.stderr
    )


def test_produce_ends_in_time_whatever_becomes_of_the_records(start_daemon: StartDaemon) -> None:
    """Its records wait for a topic that is not there: neither --timeout nor Ctrl-C waits for them."""
    with FakeBroker({"smoke": 1}) as kafka:
        ends_in_time(start_daemon(kafka.bootstrap_servers))


def ends_in_time(daemon: SidecarDaemon) -> None:
    began = time.monotonic()
    late = daemon.command("produce", "nosuch", "--timeout", "0.5", "--json", stdin=b"a\nb\n")
    assert late.returncode == 75
    found = json.loads(late.stdout)
    assert (found["sent"], found["failed"], found["without_outcome"]) == (2, 0, 2)
    assert found["error"] == late.stderr.splitlines()[-1]
    reason, end = late.stderr.splitlines()
    assert reason == "Topic nosuch is not present in Kafka yet; the records wait for it."
    assert end == "2 of 2 records have no outcome after 0.5 s (--timeout); the daemon may still deliver them."
    accepted = metric(daemon, "kafka_sidecar_records_accepted_total")
    with subprocess.Popen(
        [*cli("produce"), "--run-dir", str(daemon.run_dir), "nosuch", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"c\nin the middle of a li")
        process.stdin.flush()
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_records_accepted_total") == accepted + 1,
            "the first line to be accepted",
            describe=daemon.log_tail,
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        # On a busy machine 2 s may pass, and the reason of the wait comes first.
        *_, end = process.stderr.read().decode().splitlines()
        assert end == "Stopped: 0 of 1 record was delivered; the daemon may still deliver it."
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        assert (found["error"], found["sent"], found["without_outcome"]) == (end, 1, 1)
    assert time.monotonic() - began < 55, "max.block.ms of the daemon is 60 s"


def test_produce_without_a_stdin_says_so(daemon: SidecarDaemon) -> None:
    command = shlex.join([*cli("produce"), "--run-dir", str(daemon.run_dir), "smoke"])
    closed = subprocess.run(["sh", "-c", f"exec {command} <&-"], capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (2, "stdin is closed: name a file.\n")
    unreadable = daemon.command("produce", "smoke", "/proc/self/mem")
    assert unreadable.returncode == 1
    assert "/proc/self/mem cannot be read after record 0: Input/output error. Nothing" in unreadable.stderr


def test_top_shows_totals(daemon: SidecarDaemon) -> None:
    daemon.command("produce", "smoke", stdin=b"a\nb\n")
    shown = daemon.command("top", "-n", "1", "--interval", "0.1")
    assert shown.returncode == 0
    assert "records delivered" in shown.stdout


def test_a_killed_worker_is_replaced_and_clients_are_served(
    start_daemon: StartDaemon, mock_broker: MockBroker
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers)
    before = daemon.worker_pids()
    os.kill(before[0], signal.SIGKILL)
    wait_until(
        lambda: set(daemon.worker_pids()) != set(before) and daemon.info()["state"] == "running",
        "the worker to be replaced",
        describe=daemon.log_tail,
    )
    assert daemon.status()["restarts"] == 1
    for _ in range(2):
        assert daemon.command("produce", "smoke", stdin=b"a\n").returncode == 0


def test_status_has_an_exit_for_each_state(start_daemon: StartDaemon, mock_broker: MockBroker) -> None:
    daemon = start_daemon("127.0.0.1:1", wait=False)

    def is_unreachable() -> bool:
        return daemon.command("status", "--by-state").returncode == STATE_EXITS["unreachable"]

    wait_until(is_unreachable, "its state", describe=daemon.log_tail)
    assert daemon.command("status").returncode == 1, "the plain one keeps its two"
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    assert daemon.command("status", "--by-state").returncode == STATE_EXITS["stopped"]
    daemon.process.send_signal(signal.SIGCONT)
    daemon.stop()
    assert daemon.command("status", "--by-state").returncode == 69
    good = start_daemon(mock_broker.bootstrap_servers)
    wait_until(lambda: good.command("status", "--by-state").returncode == 0, "all workers")
    assert good.command("drain").returncode == 0
    assert good.command("status", "--by-state").returncode == STATE_EXITS["draining"]
    held = good.command("produce", "smoke", "--timeout", "0.5", stdin=b"a\n")
    assert held.stderr.splitlines() == [
        "The daemon is drained and takes no records: `kafka-sidecar resume` ends that.",
        "1 of 1 record has no outcome after 0.5 s (--timeout); the daemon may still deliver it.",
    ]
    assert len(set(STATE_EXITS.values())) == len(STATE_EXITS)


def test_status_watch_shows_it_again_until_the_daemon_ends(
    start_daemon: StartDaemon, mock_broker: MockBroker
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers)
    with subprocess.Popen(
        [*cli("status"), "--run-dir", str(daemon.run_dir), "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        shown = 0
        while shown < 2:
            shown += "pid" in watching.stdout.readline() and 1
        daemon.stop()
        _, said = watching.communicate(timeout=20)
    assert watching.returncode == 69
    assert "No daemon runs" in said
