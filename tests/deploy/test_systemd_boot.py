"""Goal: under a real systemd every end and every beginning of the daemon loses nothing, and a refusal is seen.

``make test-systemd`` runs it. The product is installed as the unit file says; Kafka is outside, and the judge is an
independent consumer.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.tools.testing.kafka_cluster import KafkaCluster, free_ports
from sidecar.tools.testing.kafka_listeners import Listener
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.waiting import wait_until
from tests.deploy import booted_tree
from tests.deploy.booted_tree import ROOT, BootedTree
from tests.deploy.outcome import Outcome, Sender
from tests.deploy.test_systemd import EXPOSURE_MAX
from tests.tools import needs

pytestmark = [
    pytest.mark.long,
    pytest.mark.kafka,
    pytest.mark.process,
    needs(*booted_tree.NEEDED),
]

UNIT = "kafka-sidecar.service"
COMMAND = "/opt/kafka-sidecar/bin/kafka-sidecar"
CONFIG = "/etc/kafka-sidecar/sidecar.toml"
SILENCE_S_MAX = 4.0
RELOAD_SILENCE_S_MAX = 0.5
WATCHDOG_S = 6
MECHANISM = "SCRAM-SHA-512"
USERS = {"sidecar": "a password of root's"}
EXAMPLE = (ROOT / "deploy" / "sidecar.example.toml").read_text()


class Host:
    """The tree with the unit installed, as its own text says."""

    def __init__(self, tree: BootedTree, kafka: KafkaCluster) -> None:
        self.tree = tree
        self.kafka = kafka
        self.listen = f"127.0.0.1:{free_ports(1)[0]}"
        servers = EXAMPLE.replace("localhost:9092", kafka.bootstrap_servers)
        self._config = servers.replace("127.0.0.1:9464", self.listen)
        for name, place in (
            (UNIT, f"/etc/systemd/system/{UNIT}"),
            ("kafka-sidecar.sysusers.conf", "/etc/sysusers.d/kafka-sidecar.conf"),
            ("kafka-sidecar.tmpfiles.conf", "/etc/tmpfiles.d/kafka-sidecar.conf"),
        ):
            tree.write(place, (ROOT / "deploy" / "systemd" / name).read_text())
        tree.write("/srv/steady_sender.py", Path(__file__).with_name("steady_sender.py").read_text())
        tree.run("systemd-sysusers")
        tree.run("systemd-tmpfiles", "--create", "kafka-sidecar.conf")
        tree.run("useradd", "--groups", "kafka-sidecar", "sender")
        tree.run("useradd", "stranger")
        self.configure()
        self.systemctl("daemon-reload")
        self.systemctl("enable", "--now", UNIT)

    def systemctl(self, *words: str, check: bool = True) -> int:
        return self.tree.run("systemctl", *words, check=check).returncode

    def show(self, name: str) -> str:
        return self.tree.run("systemctl", "show", "--value", "--property", name, UNIT).stdout.strip()

    def main_pid(self) -> int:
        return int(self.show("MainPID"))

    def configure(self, *replacements: tuple[str, str]) -> None:
        """Write the example configuration, with the first of each pair replaced by the second for this once."""
        config = self._config
        for old, new in replacements:
            assert old in config
            config = config.replace(old, new)
        self.tree.write(CONFIG, config)

    def drop_in(self, text: str) -> None:
        """Have the unit with this drop-in from the next start on."""
        self.tree.write(f"/etc/systemd/system/{UNIT}.d/test.conf", text)
        self.systemctl("daemon-reload")

    def as_user(self, user: str, *words: str) -> list[str]:
        return self.tree.words("runuser", "--user", user, "--", *words)

    def status(self, user: str) -> int:
        words = ("runuser", "--user", user, "--", COMMAND, "status", "--run-dir", "/run/kafka-sidecar")
        return self.tree.run(*words, check=False).returncode

    def send(self, topic: str, rate: int, seconds: int) -> Sender:
        """A member of the group."""
        python = "/opt/kafka-sidecar/bin/python"
        words = ["/srv/steady_sender.py", "/run/kafka-sidecar", topic, str(rate), str(seconds)]
        sender = Sender(self.as_user("sender", python, *words))
        sender.wait_delivering()
        time.sleep(1)  # of steady load before the event
        return sender

    def judge(self, sender: Sender, topic: str) -> Outcome:
        outcome = sender.outcome(self.kafka.bootstrap_servers, topic)
        print(f"{outcome.sent} sent, {outcome.failed} failed, longest silence {outcome.longest_silence_s} s")
        assert outcome.failed == 0
        return outcome

    def journal(self, lines: int = 40) -> str:
        return self.tree.run("journalctl", "--no-pager", "--unit", UNIT, "--lines", str(lines)).stdout


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(
        listeners=[Listener("SASL_PLAINTEXT", mechanisms=(MECHANISM,), users=USERS)]
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def host(kafka: KafkaCluster) -> Iterator[Host]:
    with BootedTree() as tree:
        yield Host(tree, kafka)


@pytest.fixture(autouse=True)
def running(host: Host) -> Iterator[None]:
    """Each test begins with the example configuration, without drop-ins, and a daemon that has just started."""
    host.configure()
    drop_ins = host.tree.path(f"/etc/systemd/system/{UNIT}.d")
    if drop_ins.exists():
        shutil.rmtree(drop_ins)
        host.systemctl("daemon-reload")
    host.systemctl("restart", UNIT)
    wait_until(lambda: host.status("sender") == 0, "the daemon to run", timeout_s=30, describe=host.journal)
    yield


def test_the_unit_is_closed_and_its_group_gets_in(host: Host) -> None:
    said = host.tree.run("systemd-analyze", "security", "--no-pager", UNIT).stdout
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert exposure is not None and float(exposure[1]) <= EXPOSURE_MAX, said[-200:]
    status = host.tree.path(f"/proc/{host.main_pid()}/status").read_text()
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in status
    found = host.tree.run("find", "/run/kafka-sidecar", "/var/lib/kafka-sidecar", "-perm", "/007").stdout
    assert found == ""
    assert host.status("sender") == 0
    assert host.status("stranger") != 0


@pytest.mark.parametrize("whom", ["main", "all"])
def test_killed(host: Host, new_topic: NewTopic, whom: str) -> None:
    """``all``: every process of the cgroup."""
    topic = new_topic()
    sender = host.send(topic, 1000, 9)
    host.systemctl("kill", "--signal=KILL", f"--kill-whom={whom}", UNIT)
    assert host.judge(sender, topic).longest_silence_s <= SILENCE_S_MAX


def test_the_watchdog_ends_a_daemon_that_hangs(host: Host, new_topic: NewTopic) -> None:
    topic = new_topic()
    host.drop_in(f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
    host.systemctl("restart", UNIT)
    sender = host.send(topic, 300, WATCHDOG_S + 10)
    hung = host.main_pid()
    host.systemctl("kill", "--signal=STOP", "--kill-whom=main", UNIT)
    assert host.judge(sender, topic).longest_silence_s <= SILENCE_S_MAX
    assert host.main_pid() not in {0, hung}
    assert "Watchdog timeout" in host.journal(lines=200)


@pytest.mark.parametrize("verbs", [("stop", "start"), ("restart",)])
def test_stopped_and_started(host: Host, new_topic: NewTopic, verbs: tuple[str, ...]) -> None:
    topic = new_topic()
    sender = host.send(topic, 1000, 9)
    for verb in verbs:
        host.systemctl(verb, UNIT)
    assert host.judge(sender, topic).longest_silence_s <= SILENCE_S_MAX


def test_reload_of_live_settings_keeps_the_daemon(host: Host, new_topic: NewTopic) -> None:
    topic = new_topic()
    sender = host.send(topic, 1000, 6)
    before = host.main_pid()
    host.configure(('"linger.ms" = 5', '"linger.ms" = 1'))
    host.systemctl("reload", UNIT)
    assert host.main_pid() == before
    assert host.judge(sender, topic).longest_silence_s <= RELOAD_SILENCE_S_MAX
    assert "linger.ms" in host.journal()


def test_reload_of_other_settings_is_a_takeover(host: Host, new_topic: NewTopic) -> None:
    """Twice: the second daemon was started by a reload itself. To systemd it is a main process like any other."""
    topic = new_topic()
    sender = host.send(topic, 1000, 12)
    pids = [host.main_pid()]
    for clients_max in (200, 300):
        host.configure(("[daemon]", f"[daemon]\nclients_max = {clients_max}"))
        host.systemctl("reload", UNIT)
        pids.append(host.main_pid())
        wait_until(lambda: host.show("ActiveState") == "active", "the unit to be active")
    assert len(set(pids)) == 3
    assert host.judge(sender, topic).longest_silence_s <= RELOAD_SILENCE_S_MAX


def test_a_daemon_of_a_reload_is_drained_and_its_death_is_noticed(host: Host) -> None:
    host.configure(("[daemon]", "[daemon]\nclients_max = 200"))
    host.systemctl("reload", UNIT)
    host.systemctl("stop", UNIT)
    assert "SIGTERM: draining" in host.journal(lines=10) and host.show("Result") == "success"
    host.systemctl("start", UNIT)
    host.configure()
    host.systemctl("reload", UNIT)
    of_reload = host.main_pid()
    host.systemctl("kill", "--signal=KILL", "--kill-whom=main", UNIT)
    wait_until(lambda: host.main_pid() not in {0, of_reload}, "another daemon", describe=host.journal)


@pytest.mark.parametrize(
    ("old", "new"),
    [("[daemon]", "[dæmon]"), ("[daemon]", "[daemon]\nclients_max = 0"), ("[kafka]", "[kafka")],
)
def test_reload_of_a_broken_configuration_fails_and_changes_nothing(
    host: Host, new_topic: NewTopic, old: str, new: str
) -> None:
    topic = new_topic()
    sender = host.send(topic, 1000, 4)
    before = host.main_pid()
    host.configure((old, new))
    assert host.systemctl("reload", UNIT, check=False) != 0
    assert (host.main_pid(), host.show("ActiveState")) == (before, "active")
    assert host.judge(sender, topic).longest_silence_s <= RELOAD_SILENCE_S_MAX


def test_reload_fails_when_the_next_daemon_cannot_start(host: Host, new_topic: NewTopic) -> None:
    """A setting that only a takeover can take on, with a port that belongs to another process."""
    topic = new_topic()
    sender = host.send(topic, 1000, 4)
    before = host.main_pid()
    host.configure((f'listen = "{host.listen}"', f'listen = "{host.kafka.bootstrap_servers}"'))
    assert host.systemctl("reload", UNIT, check=False) != 0
    assert (host.main_pid(), host.show("ActiveState")) == (before, "active")
    host.judge(sender, topic)


def test_start_with_a_broken_configuration_is_not_tried_for_ever(host: Host) -> None:
    host.configure(("[daemon]", "[dæmon]"))
    host.systemctl("restart", UNIT, check=False)
    wait_until(lambda: host.show("ActiveState") == "failed", "the unit to fail", timeout_s=20)
    assert (host.show("ExecMainStatus"), host.show("NRestarts")) == ("2", "0")


def test_active_and_waiting_while_kafka_is_away(host: Host) -> None:
    host.configure((host.kafka.bootstrap_servers, "127.0.0.1:1"))
    host.systemctl("restart", UNIT)
    assert host.show("ActiveState") == "active"
    alive = ("status", "--alive", "--run-dir", "/run/kafka-sidecar")
    assert host.tree.run(COMMAND, *alive, check=False).returncode == 0


def test_a_password_from_systemds_credentials(host: Host, new_topic: NewTopic) -> None:
    """Of root's alone. ExecReload may not read it (systemd 252): such a takeover is refused; a restart does it."""
    topic = new_topic()
    place = "/etc/kafka-sidecar/credentials/kafka-password"
    host.tree.write(place, USERS["sidecar"], 0o600)
    host.drop_in((ROOT / "deploy" / "systemd" / "credentials.conf").read_text())
    servers = (host.kafka.bootstrap_servers, host.kafka.servers("SASL_PLAINTEXT"))
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.username": "sidecar",
        "sasl.password.file": "${CREDENTIALS_DIRECTORY}/kafka-password",
    }
    secret = ("[kafka]", "\n".join(["[kafka]", *(f'"{name}" = "{value}"' for name, value in sasl.items())]))
    host.configure(servers, secret)
    host.systemctl("restart", UNIT)
    sender = host.send(topic, 1000, 8)
    before = host.main_pid()
    host.configure(servers, secret, ('"linger.ms" = 5', '"linger.ms" = 1'))
    host.systemctl("reload", UNIT)
    host.configure(servers, secret, ("[daemon]", "[daemon]\nclients_max = 200"))
    assert host.systemctl("reload", UNIT, check=False) != 0
    assert host.main_pid() == before
    assert "kafka-password" in host.journal(lines=10)
    host.systemctl("restart", UNIT)
    host.judge(sender, topic)
    assert USERS["sidecar"] not in host.journal(lines=200)
