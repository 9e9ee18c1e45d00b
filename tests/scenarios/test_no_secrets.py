"""No secret anywhere: marked secrets go through success and every kind of failure, and nothing shown has them."""

from __future__ import annotations

import base64
import contextlib
import traceback
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.cli.main import cli
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.metrics import http_get
from sidecar.tools.testing.private_text import write_private
from sidecar.tools.testing.token_server import Fault, TokenServer
from sidecar.tools.testing.waiting import wait_until

from .secure import CLIENT_SECRET, new_topic

pytestmark = [pytest.mark.process, pytest.mark.kafka]

PASSWORD = "Marked-Password-1c5e"
WRONG_PASSWORD = "Marked-Wrong-Password-77d0"
KEY_PASSWORD = "Marked-Key-Password-9b2f"
CLIENT_TOKEN = "Marked-Client-Token-40aa"
WRONG_TOKEN = "Marked-Wrong-Token-c3c3"
MECHANISM = "SCRAM-SHA-256"
USER = "marked"
WAIT_MS = 3_000


class Shown:
    """Everything that anybody may see, by where it was seen."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = [form for secret in secrets for form in forms_of(secret)]
        self.texts: dict[str, bytes] = {}

    def add(self, place: str, text: str | bytes) -> None:
        self.texts[place] = self.texts.get(place, b"") + (text.encode() if isinstance(text, str) else text)

    def add_error(self, place: str, error: BaseException | None) -> None:
        assert error is not None, f"{place}: no failure"
        self.add(place, "".join(traceback.format_exception(error)) + repr(error) + repr(error.args))

    def add_daemon(self, name: str, daemon: SidecarDaemon, file: Path) -> None:
        """Log, commands, pages, processes, files of the run dir, the segment."""
        for words in (("status",), ("status", "--json"), ("topics",), ("doctor", "-c", str(file))):
            done = daemon.command(*words)
            self.add(f"{name}: {' '.join(words[:2])}", done.stdout + done.stderr)
        for path in ("/", "/api/status", "/status.json", "/metrics", "/healthz"):
            with contextlib.suppress(OSError):  # 503 of a daemon without Kafka is an HTTPError
                self.add(f"{name}: {path}", http_get(daemon, path))
        pids = [int(daemon.info()["pid"]), *daemon.worker_pids(), int(daemon.info()["standby"] or 0)]
        for pid in filter(None, pids):
            for part in ("cmdline", "environ", "comm"):
                self.add(f"{name}: /proc/PID/{part}", Path(f"/proc/{pid}/{part}").read_bytes())
        for path in daemon.run_dir.rglob("*"):
            if path.is_file():
                self.add(f"{name}: {path.relative_to(daemon.run_dir)}", path.read_bytes())
        self.add(f"{name}: segment", Path(str(daemon.info()["segment"])).read_bytes())
        self.add_log(name, daemon)

    def add_log(self, name: str, daemon: SidecarDaemon) -> None:
        self.add(f"{name}: log", daemon.log_path.read_bytes())

    def check(self) -> None:
        found = [
            f"{place} has {secret!r}"
            for place, text in self.texts.items()
            for secret in self.secrets
            if secret in text
        ]
        assert not found, "\n".join(found)
        silent = [place for place, text in self.texts.items() if not text and not place.endswith(".lock")]
        assert not silent, silent


def forms_of(secret: str) -> list[bytes]:
    """As it is, in base64 at each of three places, and as a URL has it."""
    plain = secret.encode()
    # The characters at both ends of base64 depend on what stands beside.
    encoded = [base64.b64encode(b"x" * shift + plain)[4:-4] for shift in range(3)]
    return [plain, urllib.parse.quote_plus(secret).encode(), *encoded]


def configuration(folder: Path, settings: Mapping[str, object]) -> Path:
    """A configuration file of mode 0600, with a client that has a token."""
    lines = ["[kafka]", *(f'"{name}" = "{value}"' for name, value in settings.items())]
    return write_private(
        folder / "sidecar.toml",
        "\n".join([*lines, '[clients."trusted"]', f'token = "{CLIENT_TOKEN}"', ""]),
    )


@contextlib.contextmanager
def running(file: Path, servers: str, *, is_ready: bool = True) -> Iterator[SidecarDaemon]:
    daemon = SidecarDaemon(
        servers, settings={"log.level": "debug", "daemon.workers": 1, "buffer.memory": 16 << 20}
    )
    try:
        daemon.spawn("-c", str(file))
        if is_ready:
            daemon.wait_ready()
        else:
            daemon.wait_published()
        yield daemon
    finally:
        daemon.remove()


def times(settings: Mapping[str, object]) -> dict[str, object]:
    """Records that cannot be sent fail soon."""
    return {
        **settings,
        "linger.ms": 0,
        "max.block.ms": WAIT_MS,
        "request.timeout.ms": 1_000,
        "delivery.timeout.ms": WAIT_MS,
    }


def producer(daemon: SidecarDaemon, **options: Any) -> Producer:
    options = {"client_name": "trusted", "token": CLIENT_TOKEN, **options}
    return Producer(run_dir=str(daemon.run_dir), connect_timeout_ms=10_000, **options)


def test_passwords_keys_and_client_tokens(secure_kafka: KafkaCluster, tmp_path: Path) -> None:
    """A password, a key's password and a client's token: accepted, refused, withdrawn, mistyped, reloaded."""
    kafka, operator, topic = secure_kafka, secure_kafka.security(), new_topic(secure_kafka)
    shown = Shown(PASSWORD, WRONG_PASSWORD, KEY_PASSWORD, CLIENT_TOKEN, WRONG_TOKEN)
    operator.set_scram_user(USER, PASSWORD, MECHANISM)
    operator.grant(USER, "WRITE", topic)
    mine = kafka.authority.issue(USER).write(tmp_path / "mine.pem", password=KEY_PASSWORD)
    base: dict[str, object] = {
        **kafka.client_settings("SASL_SSL", MECHANISM),
        "bootstrap.servers": kafka.servers("SASL_SSL"),
        "ssl.certificate.location": mine,
        "ssl.key.location": mine,
        "ssl.key.password": KEY_PASSWORD,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    servers = kafka.servers("SASL_SSL")
    file = configuration(tmp_path, times(base))
    with running(file, servers) as daemon:
        with producer(daemon) as good:
            assert good.send(topic, b"x").result(20).offset == 0
            shown.add_error("a topic that is not there", good.send("nowhere", b"x").exception(20))
            shown.add("the producer", repr(good) + repr(vars(type(good))))
        with pytest.raises(SidecarError) as refused, producer(daemon, token=WRONG_TOKEN) as bad:
            bad.send(topic, b"x").result(20)
        shown.add_error("a client with a wrong token", refused.value)
        operator.remove_scram_user(USER, MECHANISM)
        kafka.relay("SASL_SSL").cut()
        with producer(daemon) as waiting:
            shown.add_error("a password withdrawn", waiting.send(topic, b"x").exception(20))
        shown.add_daemon("withdrawn", daemon, file)
        operator.set_scram_user(USER, PASSWORD, MECHANISM)
        texts = broken_texts(file.read_text())
        for name in ("no end of a string", "a table", "a wrong key password"):
            write_private(file, texts[name])
            done = daemon.command("reload")
            assert done.returncode != 0, name
            shown.add(f"reload, {name}", done.stdout + done.stderr)
        shown.add_log("reloaded", daemon)
    configuration(tmp_path, times(base | {"sasl.password": WRONG_PASSWORD}))
    with running(file, servers, is_ready=False) as daemon:
        with producer(daemon) as waiting:
            shown.add_error("a wrong password", waiting.send(topic, b"x").exception(20))
        shown.add_daemon("wrong password", daemon, file)
    add_commands(shown, file)
    shown.check()
    assert b"SCRAM-SHA-256" in shown.texts["a wrong password"], "the error is about the login"


def broken_texts(good: str) -> dict[str, str]:
    """A configuration with mistakes right at its secrets."""
    password = f'"sasl.password" = "{PASSWORD}"'
    assert password in good and CLIENT_TOKEN in good
    return {
        "no end of a string": good.replace(password, password[:-1]),
        "an unknown name": good.replace('"sasl.password"', '"sasl.pasword"'),
        "a list": good.replace(password, f'"sasl.password" = ["{PASSWORD}"]'),
        "a table": good.replace(password, f'"sasl.password" = {{"{PASSWORD}" = 1}}'),
        "both": good.replace(password, f'{password}\n"sasl.password.file" = "/nowhere"'),
        "a wrong key password": good.replace(KEY_PASSWORD, f"{KEY_PASSWORD}-not"),
        "an unknown client key": good.replace("token = ", "tokens = "),
        "a token that is a list": good.replace(f'"{CLIENT_TOKEN}"', f'["{CLIENT_TOKEN}"]'),
        "a JAAS line": good.replace(
            password,
            '"sasl.jaas.config" = "org.apache.kafka.common.security.scram.ScramLoginModule required '
            f"username=me password='{PASSWORD}\"",
        ),
        "no equals": good.replace(password, f'"{PASSWORD}"'),
    }


def add_commands(shown: Shown, file: Path) -> None:
    """Commands that read a configuration without a daemon, over good and broken files."""
    good = file.read_text().replace(WRONG_PASSWORD, PASSWORD)
    texts = {"good": good, **broken_texts(good)}
    for name, text in texts.items():
        write_private(file, text)
        for words in (("check",), ("show",), ("show", "--json")):
            done = CliRunner().invoke(cli, ["config", *words, "-c", str(file)])
            assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
            shown.add(f"config {' '.join(words)}, {name}", done.output)
            assert (done.exit_code == 0) == (name == "good"), (name, done.output)


def test_client_secrets_and_tokens(secure_kafka: KafkaCluster, tokens: TokenServer, tmp_path: Path) -> None:
    """The client's secret and each token: accepted, refused by the endpoint and by the broker, expired, opaque."""
    kafka, topic = secure_kafka, new_topic(secure_kafka)
    fixed = tokens.sign("alice", lifetime_s=-600)
    shown = Shown(CLIENT_SECRET, CLIENT_TOKEN)
    base: dict[str, object] = {
        **kafka.client_settings("TOKENS", "OAUTHBEARER"),
        "bootstrap.servers": kafka.servers("TOKENS"),
        "sasl.login.refresh.min.period.seconds": 0,
        "sasl.login.refresh.buffer.seconds": 0,
        "sasl.login.retry.backoff.max.ms": 200,
    }
    fetched = {
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": tokens.token_url,
    }
    tokens.lifetime_s = 4.0
    try:
        file = configuration(tmp_path, times(base | fetched))
        with running(file, kafka.servers("TOKENS")) as daemon:
            with producer(daemon) as good:
                assert good.send(topic, b"x").result(20).offset == 0
            for fault in (Fault.HTML, Fault.NO_JWT, Fault.EXPIRED, Fault.UNAUTHORIZED):
                tokens.fault = fault
                asked = len(tokens.requests)
                wait_until(lambda asked=asked: len(tokens.requests) > asked, "a try")  # type: ignore[misc]
            with producer(daemon) as waiting:
                shown.add_error("no good token", waiting.send(topic, b"x").exception(20))
            shown.add_daemon("no good token", daemon, file)
    finally:
        tokens.fault, tokens.lifetime_s = None, 3600.0
    file = configuration(tmp_path, times(base | {"sasl.oauthbearer.token": fixed}))
    for words in (("check",), ("show",), ("show", "--json")):
        shown.add(f"config {words[-1]}", CliRunner().invoke(cli, ["config", *words, "-c", str(file)]).output)
    with running(file, kafka.servers("TOKENS"), is_ready=False) as daemon:
        with producer(daemon) as waiting:
            shown.add_error("an expired token", waiting.send(topic, b"x").exception(20))
        shown.add_daemon("an expired token", daemon, file)
    shown.secrets += [form for token in tokens.issued for form in forms_of(token.rpartition(".")[2])]
    shown.check()
