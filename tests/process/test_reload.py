"""Goal: `kafka-sidecar reload` changes what is live while records flow, all or nothing, and says what it did."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.common.model import ExitStatus
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon, cli
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.mock_broker import MockBroker
from sidecar.tools.testing.steady_load import SteadyLoad
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process


def reload(daemon: SidecarDaemon, file: Path, text: str) -> subprocess.CompletedProcess[str]:
    file.write_text(text)
    return daemon.command("reload")


def reloaded(daemon: SidecarDaemon, file: Path, text: str) -> str:
    """Output of a reload that is not refused."""
    done = reload(daemon, file, text)
    assert done.returncode == ExitStatus.OK, done.stderr + daemon.log_tail()
    return done.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "sidecar.toml"
    found.write_text("")
    return found


@pytest.mark.kafka
def test_under_load(kafka: KafkaCluster, start_daemon: StartDaemon, new_topic: NewTopic, file: Path) -> None:
    """Codec, batch size, linger, timeouts and rates change under records on their way: none is lost or doubled."""
    daemon = start_daemon(kafka.bootstrap_servers, config=file)
    topic = new_topic(partitions=3)
    texts = [
        '[kafka]\ncompression.type = "zstd"\nlinger.ms = 20\n',
        '[kafka]\nbatch.size = 500\ncompression.type = "lz4"\n"delivery.timeout.ms" = 90000\n',
        f'[topics."{topic}"]\ncompression.type = "gzip"\nrecords.per.second = 100000\n',
        "[daemon]\nclient_grace_s = 30\nclient_ack_timeout_s = 10\n[dead_letters]\nmax_bytes = 1000000\n",
        "",
    ]
    with SteadyLoad(kafka.bootstrap_servers, daemon.run_dir, topic, clients=3) as load:
        pids = daemon.worker_pids()
        for text in [*texts, *texts]:
            assert "→" in reloaded(daemon, file, text) or "added" in text or "topics" in text or not text
            load.wait_more(200)
        load.check()
        assert daemon.worker_pids() == pids
    took_ms = [
        float(each)
        for each in re.findall(r"Reloaded the configuration in (\d+) ms", daemon.log_path.read_text())
    ]
    assert len(took_ms) == 10
    print(f"\nreload: {sorted(took_ms)} ms")
    assert daemon.stop() == ExitStatus.OK, daemon.log_tail()
    assert "Traceback" not in daemon.log_path.read_text()


def test_all_or_nothing(start_daemon: StartDaemon, mock_broker: MockBroker, file: Path) -> None:
    """A fault, or one setting that is not live: refused by name, and the live change beside it is not taken on."""
    daemon = start_daemon(mock_broker.bootstrap_servers, config=file)
    for text, (status, sentence) in {
        "[kafka\n": (ExitStatus.FAILED, "is not valid TOML"),
        "[kafka]\nlinger.ms = -1\n": (ExitStatus.FAILED, "linger.ms = -1"),
        "[kafka]\nlinger.ms = 7\n[pool]\npage_bytes = 32768\n": (
            ExitStatus.NEEDS_TAKEOVER,
            "pool.page_bytes 16384 → 32768 needs a clean stop: kafka-sidecar drain, then restart the daemon.",
        ),
        "[topics.smoke]\nacks = 1\nlinger.ms = 8\n": (
            ExitStatus.NEEDS_TAKEOVER,
            'acks or partitioner of the topics of topics."smoke" needs a restart',
        ),
    }.items():
        refused = reload(daemon, file, text)
        assert refused.returncode == status
        assert sentence in refused.stderr
        assert "keeps its earlier configuration" in refused.stderr
    assert reloaded(daemon, file, "") == "Nothing has changed.\n"
    assert reloaded(daemon, file, "[kafka]\nlinger.ms = 7\n") == "linger.ms 5 → 7\n"
    file.unlink()
    assert daemon.command("reload").returncode == ExitStatus.FAILED
    assert daemon.command("status").returncode == ExitStatus.OK


def test_workers_that_start_later_have_it(
    start_daemon: StartDaemon, mock_broker: MockBroker, file: Path
) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers, config=file, settings={"daemon.workers": 1})
    assert "Client first attached" not in attach(daemon, "first")
    reloaded(daemon, file, '[log]\nlevel = "debug"\n')
    assert "Client second attached" in attach(daemon, "second")
    pids = daemon.worker_pids()
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: daemon.worker_pids() not in ([], pids), "the next worker")
    assert "Client third attached" in attach(daemon, "third")


def attach(daemon: SidecarDaemon, name: str) -> str:
    """The log after a client of that name has sent a record."""
    with Producer(run_dir=str(daemon.run_dir), client_name=name) as producer:
        producer.send("smoke", b"x").result(30)
    return daemon.log_path.read_text()


def test_a_stopped_worker_is_named(start_daemon: StartDaemon, mock_broker: MockBroker, file: Path) -> None:
    """The others have the settings; the command says who has not confirmed them."""
    daemon = start_daemon(
        mock_broker.bootstrap_servers, config=file, settings={"daemon.heartbeat_timeout_s": 600}
    )
    stopped = daemon.ready_pids()[0]  # one that still starts has nothing to confirm
    os.kill(stopped, signal.SIGSTOP)
    try:
        file.write_text("[kafka]\nlinger.ms = 7\n")
        done = daemon.command("reload")
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert done.returncode == ExitStatus.OK
    assert f"(pid {stopped}) has not confirmed the new settings" in done.stderr


def test_another_way_to_kafka(mock_broker: MockBroker, file: Path) -> None:
    """A daemon that was started with a wrong address finds Kafka by the right one."""
    file.write_text('[kafka]\nbootstrap.servers = "127.0.0.1:1"\n')
    daemon = SidecarDaemon(None, config=file)
    try:
        daemon.spawn()
        wait_until(
            lambda: "127.0.0.1:1" in daemon.command("status").stdout, "the daemon to say what it misses"
        )
        reloaded(daemon, file, f'[kafka]\nbootstrap.servers = "{mock_broker.bootstrap_servers}"\n')
        daemon.wait_ready()
    finally:
        daemon.remove()


def test_each_who_asks_has_an_answer(start_daemon: StartDaemon, mock_broker: MockBroker, file: Path) -> None:
    daemon = start_daemon(mock_broker.bootstrap_servers, config=file)
    file.write_text("[kafka]\nlinger.ms = 7\n")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: daemon.command("reload"), range(4)))
    assert {each.returncode for each in answers} == {ExitStatus.OK}
    assert "linger.ms 5 → 7\n" in {each.stdout for each in answers}


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def test_one_asked_for_while_it_starts_is_not_forgotten(
    start_daemon: StartDaemon, mock_broker: MockBroker, file: Path
) -> None:
    """One that takes over waits in its loop for a second, and has read its configuration before."""
    daemon = start_daemon(mock_broker.bootstrap_servers, config=file)
    pid = daemon.spawn("--takeover").pid
    wait_until(lambda: catches(pid, signal.SIGHUP), "the handler", interval_s=0.002)
    file.write_text("[kafka]\nlinger.ms = 33\n")
    os.kill(pid, signal.SIGHUP)
    daemon.wait_ready()
    wait_until(
        lambda: any("linger.ms 5 → 33" in line for line in daemon.log_lines()),
        "the change",
        describe=daemon.log_tail,
    )
    assert "SIGHUP: still starting" in daemon.log_path.read_text()


def test_a_closed_terminal_drains(mock_broker: MockBroker) -> None:
    """SIGHUP reloads; with the terminal gone nobody will look any more, and the daemon ends in good order."""
    daemon = SidecarDaemon(mock_broker.bootstrap_servers)
    master, slave = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    with daemon.log_path.open("ab") as log:
        words = ["-X", f"bootstrap.servers={mock_broker.bootstrap_servers}", "-X", "http.listen="]
        daemon.process = subprocess.Popen(
            [*cli("run"), "--run-dir", str(daemon.run_dir), *words],
            stdin=slave,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509
        )
    os.close(slave)
    try:
        daemon.wait_ready()
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "nothing has changed" in daemon.log_path.read_text(), "the reload")
        os.close(master)
        assert daemon.process.wait(20) == ExitStatus.OK, daemon.log_tail()
        assert "The terminal was closed: draining" in daemon.log_path.read_text()
    finally:
        daemon.remove()


def test_a_configuration_that_cannot_be_read_does_not_hold_up_the_end(
    start_daemon: StartDaemon, mock_broker: MockBroker, file: Path
) -> None:
    """A FIFO that nobody writes to stands for an NFS mount that is away."""
    daemon = start_daemon(mock_broker.bootstrap_servers, config=file)
    assert daemon.process is not None
    file.unlink()
    os.mkfifo(file)
    daemon.process.send_signal(signal.SIGHUP)
    fd = wait_until(lambda: writer(file), "the reload to read", describe=daemon.log_tail)
    try:
        assert daemon.stop() == ExitStatus.OK
    finally:
        os.close(fd)


def writer(fifo: Path) -> int | None:
    """The other end of a FIFO that somebody reads."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
