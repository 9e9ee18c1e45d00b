"""Goal: a token from each source, one sentence for what an endpoint may do instead, and renewal in the background."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sidecar.common.control import LoginToken
from sidecar.common.control_codec import decode_message, encode_message
from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError, SidecarConfig
from sidecar.controller.cluster.cluster import Cluster
from sidecar.controller.cluster.token_endpoint import TOKEN_ANSWER_BYTES_MAX, TokenError
from sidecar.controller.cluster.token_keeper import TokenKeeper
from sidecar.controller.cluster.token_sources import token_source
from sidecar.protocol.sasl.credentials import OAuthToken, token_fingerprint
from sidecar.tools.testing.certificates import LOCAL_HOSTS, CertificateAuthority
from sidecar.tools.testing.token_server import Fault, TokenServer
from tests.net.links import until
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from sidecar.controller.workers.worker_process import WorkerProcess

SECRET = "client secret"
BASE = ("bootstrap.servers=localhost:9092", "security.protocol=SASL_SSL_", "sasl.mechanism=OAUTHBEARER")


def values_of(*overrides: str) -> dict[str, Any]:
    base = [each.replace("SASL_SSL_", "SASL_PLAINTEXT") for each in BASE]
    return dict(load_config(None, [*base, *overrides], {}).values)


def client(url: str, *overrides: str) -> dict[str, Any]:
    return values_of(
        f"sasl.oauthbearer.token.endpoint.url={url}",
        "sasl.oauthbearer.client.id=alice",
        f"sasl.oauthbearer.client.secret={SECRET}",
        *overrides,
    )


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer(clients={"alice": SECRET, "a:b c": "ü%:"}) as server:
        yield server


def test_by_client_credentials(tokens: TokenServer) -> None:
    values = client(
        tokens.token_url, "sasl.oauthbearer.scope=kafka write", "sasl.oauthbearer.extensions=a=1,b=2"
    )
    token = token_source(values)()
    assert token.principal == "alice" and token.extensions == {"a": "1", "b": "2"}
    assert token.expires_at_ms is not None and 3_500 < token.expires_at_ms / 1000 - time.time() < 3_610
    (request,) = tokens.requests
    assert (request.client_id, request.scope) == ("alice", "kafka write")


def test_the_other_spelling_a_secret_file_and_url_encoding(tokens: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("ü%:\n")
    values = values_of(
        f"sasl.oauthbearer.token.endpoint.url={tokens.token_url}",
        "sasl.oauthbearer.client.credentials.client.id=a:b c",
        f"sasl.oauthbearer.client.credentials.client.secret.file={path}",
        "sasl.oauthbearer.header.urlencode=true",
        "sasl.oauthbearer.method=oidc",
    )
    assert token_source(values)().principal == "a:b c"


def test_by_tls_with_an_own_ca(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    with TokenServer(certificate=authority.issue("tokens", hosts=LOCAL_HOSTS)) as server:
        ca = authority.write(tmp_path / "ca.pem")
        assert token_source(client(server.token_url, f"https.ca.location={ca}"))().value
        with pytest.raises(TokenError, match=r"not trusted .*https\.ca\.location"):
            token_source(client(server.token_url))()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.DOWN, "does not answer"),
        (Fault.SLOW, "did not answer in time"),
        (Fault.UNAUTHORIZED, r"HTTP status 401 \(invalid_client, The client is not known\.\)"),
        (Fault.SERVER_ERROR, r"HTTP status 500\."),
        (Fault.HTML, "answers with text/html, and not with a token in JSON"),
        (Fault.NO_TOKEN, "without an access_token"),
        (Fault.EXPIRED, "gave a token that has expired already"),
    ],
)
def test_a_fault_of_the_token_endpoint_is_one_sentence(tokens: TokenServer, fault: Fault, words: str) -> None:
    tokens.fault = fault
    in_short = ["sasl.login.read.timeout.ms=200"] if fault is Fault.SLOW else []
    with pytest.raises(TokenError, match=words) as caught:
        token_source(client(tokens.token_url, *in_short))()
    assert SECRET not in str(caught.value)
    tokens.fault = None
    assert token_source(client(tokens.token_url))().value


def test_a_wrong_secret_and_nobody_there(tokens: TokenServer) -> None:
    with pytest.raises(TokenError, match="401"):
        token_source(client(tokens.token_url) | {"sasl.oauthbearer.client.secret": "wrong"})()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TokenError, match="refused"):
        token_source(client(f"http://127.0.0.1:{port}/token"))()


def serve_once(answer: bytes, pause_s: float = 0.0, piece: int = 1 << 20) -> str:
    """The address of an HTTP server of raw bytes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener, listener.accept()[0] as peer:
            asked = b""
            while not asked.endswith(b"grant_type=client_credentials"):
                asked += peer.recv(1 << 16)
            for start in range(0, len(answer), piece):
                try:
                    peer.sendall(answer[start : start + piece])
                except OSError:
                    return
                time.sleep(pause_s)

    threading.Thread(target=run, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/token"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HEAD + b"[1]", "not with a token"),
        (HEAD + b"{" * 10_000, "not with a token"),
        (HEAD + b'{"access_token":"a b","expires_in":60}', "RFC 6750"),
        (HEAD + b'{"access_token":"opaque"}', "does not say when its token ends"),
        (HEAD + b'{"access_token":"opaque","expires_in":true}', "does not say when"),
        (HEAD + b'{"access_token":"opaque","expires_in":NaN}', "has expired"),
        (HEAD + b'{"access_token":"' + b"x" * TOKEN_ANSWER_BYTES_MAX, "over 256 KiB"),
        (b"garbage\r\n\r\n", "does not answer"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "status 302"),
    ],
)
def test_garbage(answer: bytes, words: str) -> None:
    with pytest.raises(TokenError, match=words):
        token_source(client(serve_once(answer)))()


def test_an_opaque_token_at_the_bound_of_an_answer() -> None:
    start, end = b'{"expires_in":60,"access_token":"', b'"}'
    body = start + b"x" * (TOKEN_ANSWER_BYTES_MAX - len(start) - len(end)) + end
    assert token_source(client(serve_once(HEAD + body)))().principal == "alice"


def test_a_byte_now_and_then_is_no_answer() -> None:
    url = serve_once(HEAD + b" " * 1_000, pause_s=0.05, piece=40)
    with pytest.raises(TokenError, match="in time"):
        token_source(client(url, "sasl.login.read.timeout.ms=300"))()


# ---- other sources


def test_as_set_and_from_a_file_that_changes(tokens: TokenServer, tmp_path: Path) -> None:
    one, other = tokens.sign("alice"), tokens.sign("bob")
    for override in (f"sasl.oauthbearer.token={one}", f"sasl.oauthbearer.config=token={one}"):
        assert token_source(values_of(override))().value == one
    path = tmp_path / "token"
    path.write_text(one + "\n")
    for override in (
        f"sasl.oauthbearer.token.file={path}",
        f"sasl.oauthbearer.token.endpoint.url={path.as_uri()}",
    ):
        fetch = token_source(values_of(override))
        path.write_text(one + "\n")
        assert fetch().principal == "alice"
        path.write_text(other)
        assert fetch().principal == "bob"
        path.write_text(tokens.sign("bob", lifetime_s=-5))
        with pytest.raises(TokenError, match=r"sasl\.oauthbearer\.token\.file = .* has expired already"):
            fetch()
        path.write_text(one)
    path.unlink()
    with pytest.raises(TokenError, match="no such file"):
        fetch()


PROVIDERS = """
import time
given = []
def good(config): given.append(config); return "tok", time.time() + 60
def rich(config): return "tok", time.time() + 60, "carol", {"a": "1"}
def late(config): return "tok", time.time() - 60
def wrong(config): return "tok"
def raises(config): raise ValueError("hidden")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with token providers, as pip would have put it there."""
    (tmp_path / "token_makers.py").write_text(PROVIDERS)
    folder = tmp_path / "token_makers-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: token-makers\nVersion: 1.0\n")
    names = ("good", "rich", "late", "wrong", "raises")
    lines = "".join(f"{name} = token_makers:{name}\n" for name in names)
    (folder / "entry_points.txt").write_text(f"[kafka_sidecar.oauth_token]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("token_makers", None)


def provider(name: str) -> OAuthToken:
    values = values_of(f"sasl.oauthbearer.token.provider={name}", "sasl.oauthbearer.config=some words")
    return token_source(values)()


@pytest.mark.usefixtures("installed")
def test_by_a_callable() -> None:
    assert provider("good").value == "tok"
    assert sys.modules["token_makers"].given == ["some words"]
    token = provider("rich")
    assert (token.principal, token.extensions) == ("carol", {"a": "1"})
    for name, words in (
        ("late", "has expired"),
        ("wrong", r"must return \(token"),
        ("raises", "raised ValueError"),
    ):
        with pytest.raises(TokenError, match=words) as caught:
            provider(name)
        assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigError, match="is not an entry point"):
        provider("absent")


@pytest.mark.skipif(
    find_spec("aws_msk_iam_sasl_signer") is None,
    reason="needs aws-msk-iam-sasl-signer-python (pip: the extra msk)",
)
def test_by_aws_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Signing needs no network; MSK's answer to it cannot be tried here."""
    for name in ("AWS_PROFILE", "AWS_ROLE_ARN", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    values = dict(
        load_config(
            None,
            [
                "bootstrap.servers=b-1.x.abc.c2.kafka.eu-west-1.amazonaws.com:9098",
                "security.protocol=SASL_PLAINTEXT",
                "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;",
            ],
            {},
        ).values
    )
    assert (values["sasl.mechanism"], values["sasl.oauthbearer.aws.region"]) == ("OAUTHBEARER", "eu-west-1")
    with pytest.raises(TokenError, match="no credentials"):
        token_source(values)()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    token = token_source(values)()
    assert token.expires_at_ms is not None and token.expires_at_ms > time.time() * 1000
    with pytest.raises(ConfigError, match=r"aws\.region"):
        values_of("sasl.mechanism=AWS_MSK_IAM")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), "needs one of sasl.oauthbearer.token.endpoint.url"),
        (("sasl.oauthbearer.token=a", "sasl.oauthbearer.token.provider=b"), "are both set"),
        (("sasl.oauthbearer.token.endpoint.url=http://idp.example/t",), "in clear text"),
        (("sasl.oauthbearer.token.endpoint.url=https://u:p@idp.example/t",), "without a user"),
        (("sasl.oauthbearer.token.endpoint.url=idp",), "must be https://host/path"),
        (("sasl.oauthbearer.token.endpoint.url=https://[::1",), "must be https://host/path"),
        (("sasl.oauthbearer.token.endpoint.url=https://idp/t",), "needs sasl.oauthbearer.client.id"),
        (("sasl.oauthbearer.token=a", "sasl.oauthbearer.method=oidc"), "oidc needs"),
        (("sasl.oauthbearer.token=a", "sasl.oauthbearer.extensions=auth=x"), "extensions must be"),
        (("sasl.oauthbearer.token=a", "sasl.oauthbearer.extensions=a=1,a=2"), "extensions must be"),
        (
            ('sasl.jaas.config=x.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="a";',),
            "an unsecured token",
        ),
    ],
)
def test_unusable_token_settings_are_one_sentence(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        values_of(*overrides)
    assert words in "\n".join(refused.value.sentences)


def test_a_jaas_entry_of_a_client() -> None:
    values = values_of(
        "sasl.oauthbearer.token.endpoint.url=https://idp/t",
        "sasl.jaas.config=a.OAuthBearerLoginModule required clientId='alice' clientSecret='b' scope=\"c\" "
        "extension_logicalCluster='lkc';",
    )
    names = ("client.id", "client.secret", "scope", "extensions")
    found = [values[f"sasl.oauthbearer.{name}"] for name in names]
    assert found == ["alice", "b", "c", "logicalCluster=lkc"]


# ---- the keeper


def test_the_keeper_renews_and_keeps_the_old_one_while_it_must() -> None:
    fetched: list[str] = []
    handed: list[LoginToken] = []
    is_broken = threading.Event()

    def fetch() -> OAuthToken:
        if is_broken.is_set():
            raise TokenError("The endpoint is down.")
        fetched.append(f"t{len(fetched)}")
        return OAuthToken(fetched[-1], time.time() * 1000 + 300)

    async def live() -> None:
        values = values_of("sasl.oauthbearer.token=x", "sasl.login.retry.backoff.ms=10")
        keeper = TokenKeeper(values, handed.append, fetch=fetch)
        keeper.start()
        await until(lambda: len(handed) >= 3)
        assert [each.token for each in handed[:3]] == ["t0", "t1", "t2"]
        is_broken.set()
        await until(lambda: bool(handed[-1].why_not))
        assert handed[-1].token == fetched[-1], "it may still live"
        count = len(fetched)
        is_broken.clear()
        await until(lambda: len(fetched) > count and handed[-1].token == fetched[-1])
        assert not handed[-1].why_not
        keeper.close()

    asyncio.run(live())


def test_a_refused_token_is_replaced_once_for_all_who_say_so() -> None:
    """Workers say it as well: the controller's own login may last while a broker refuses theirs."""
    fetched: list[str] = []
    handed: list[LoginToken] = []

    def fetch() -> OAuthToken:
        fetched.append(f"t{len(fetched)}")
        return OAuthToken(fetched[-1], time.time() * 1000 + 3_600_000)

    async def live() -> None:
        values = values_of(
            "sasl.oauthbearer.token=x",
            "sasl.login.retry.backoff.ms=10",
            "sasl.login.retry.backoff.max.ms=10",
        )
        keeper = TokenKeeper(values, handed.append, fetch=fetch)
        keeper.start()
        await until(lambda: len(handed) == 1)
        for _ in range(3):
            keeper.refused(token_fingerprint("t0"))
        await until(lambda: len(handed) == 2)
        keeper.refused(token_fingerprint("t0"))  # a worker that had not heard of the next one yet
        keeper.refused(token_fingerprint("never one of ours"))
        keeper.refused(token_fingerprint("t1"))
        await until(lambda: len(handed) == 3)
        await until(lambda: not keeper._wanted.is_set())
        keeper.refused(token_fingerprint("t0"))
        assert fetched == ["t0", "t1", "t2"] and not keeper._wanted.is_set()
        keeper.close()

    asyncio.run(live())


def test_an_endpoint_that_hangs_holds_nobody_up() -> None:
    release, ended = threading.Event(), threading.Event()

    def fetch() -> OAuthToken:
        release.wait(PATIENCE_S)
        ended.set()
        raise TokenError("late")

    async def live() -> None:
        keeper = TokenKeeper(values_of("sasl.oauthbearer.token=x"), lambda _: None, fetch=fetch)
        keeper.start()
        await asyncio.sleep(0)
        keeper.close()

    asyncio.run(live())
    assert not ended.is_set()
    release.set()


def test_a_source_that_hangs_is_said_and_its_late_token_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sidecar.controller.cluster.token_keeper.HANGS_S", 0.05)
    release, handed, asked = threading.Event(), [], []

    def fetch() -> OAuthToken:
        asked.append(1)
        release.wait(30)
        return OAuthToken("late", time.time() * 1000 + 60_000)

    async def live() -> None:
        keeper = TokenKeeper(values_of("sasl.oauthbearer.token=x"), handed.append, fetch=fetch)
        keeper.start()
        await until(lambda: len(handed) >= 3)
        assert all("has not answered for 0.05 s" in each.why_not for each in handed)
        assert len(asked) == 1, "no second thread beside the one that hangs"
        release.set()
        await until(lambda: handed[-1].token == "late")
        assert not handed[-1].why_not
        keeper.close()

    asyncio.run(live())
    assert sum("has not answered" in each.getMessage() for each in caplog.records) == 1


def test_a_reload_with_a_source_that_hangs_leaves_the_old_token_to_new_workers() -> None:
    async def live() -> None:
        def config(*overrides: str) -> SidecarConfig:
            words = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", *overrides]
            return load_config(None, ["bootstrap.servers=127.0.0.1:1", *words], {})

        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/t"
            cluster = Cluster(config("sasl.oauthbearer.token=old"))
            cluster.start()
            first, second = _Joining(1), _Joining(2)
            cluster.worker_joined(cast("WorkerProcess", first))
            await until(lambda: bool(first.tokens) and first.tokens[-1].token == "old")
            cluster.use(
                config(
                    f"sasl.oauthbearer.token.endpoint.url={url}",
                    "sasl.oauthbearer.client.id=a",
                    "sasl.oauthbearer.client.secret=b",
                )
            )
            cluster.worker_joined(cast("WorkerProcess", second))
            assert [each.token for each in second.tokens] == ["old"]
            await cluster.close()

    asyncio.run(live())


def test_a_token_that_a_worker_was_refused_is_replaced_at_all_workers(tmp_path: Path) -> None:
    async def live() -> None:
        file = tmp_path / "token"
        file.write_text("old")
        words = [
            "bootstrap.servers=127.0.0.1:1",
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=OAUTHBEARER",
            f"sasl.oauthbearer.token.file={file}",
            "sasl.login.retry.backoff.ms=10",
            "sasl.login.retry.backoff.max.ms=10",
        ]
        cluster = Cluster(load_config(None, words, {}))
        cluster.start()
        workers = [_Joining(1), _Joining(2)]
        for worker in workers:
            cluster.worker_joined(cast("WorkerProcess", worker))
        await until(lambda: all(each.tokens and each.tokens[-1].token == "old" for each in workers))
        file.write_text("new")
        cluster.token_refused(token_fingerprint("old"))
        await until(lambda: all(each.tokens[-1].token == "new" for each in workers))
        await cluster.close()

    asyncio.run(live())


class _Joining:
    """A worker as far as the cluster sees it: an identity, and a channel to it."""

    def __init__(self, index: int) -> None:
        self.identity = self.channel = self
        self.index = self.epoch = index
        self.tokens: list[LoginToken] = []

    def send(self, message: object) -> None:
        if isinstance(message, LoginToken):
            self.tokens.append(message)


def test_a_token_goes_over_the_control_channel_and_is_in_no_repr() -> None:
    message = LoginToken("hidden", 1.5, "alice", {"a": "b"}, "why")
    assert decode_message(encode_message(message)[4:]) == message
    assert "hidden" not in repr(message)
