"""Links through TLS: what connects, and the sentence for each cause that does not; brokers here are Python's TLS."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from sidecar.net.kafka.connector import LinkError
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.tools.testing.certificates import LOCAL_HOSTS, CertificateAuthority
from tests.configs import security

from .conftest import Run
from .fake_broker import FakeBroker, Peer
from .links import NotingLinks, node_of, until
from .test_broker_link import answer_anything
from .tls_harness import TlsHarness

OTHER_CA = CertificateAuthority("somebody else")


async def refusal(broker: FakeBroker, how: LinkSecurity, host: str = "127.0.0.1") -> str:
    """The sentence of the first attempt's failure."""
    noting = NotingLinks(how)
    try:
        assert noting.links.ready(node_of(broker.port, host)) is None
        await until(lambda: bool(noting.states))
    finally:
        noting.links.close_all()
    _, connected, sentence = noting.states[0]
    assert not connected
    assert sentence is not None
    assert f"{host}:{broker.port}" in sentence
    assert sentence.count("\n") == 0
    assert sentence.endswith(".")
    return sentence


def refused(run: Run, server: ssl.SSLContext | None, how: LinkSecurity, host: str = "127.0.0.1") -> str:
    said: list[str] = []

    async def test() -> None:
        async with FakeBroker(answer_anything, tls=server) as broker:
            said.append(await refusal(broker, how, host))

    run(test)
    return said[0]


def accepted(run: Run, server: ssl.SSLContext, how: LinkSecurity, host: str = "127.0.0.1") -> str:
    """The version of TLS that was agreed on."""
    said: list[str] = []

    async def test() -> None:
        async with FakeBroker(answer_anything, tls=server) as broker:
            noting = NotingLinks(how)
            await noting.connect(node_of(broker.port, host))
            (peer,) = broker.peers
            assert peer.tls is not None
            said.append(str(peer.tls.version()))
            noting.links.close_all()

    run(test)
    return said[0]


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_a_good_certificate_by_name_and_by_address(run: Run, tls_harness: TlsHarness, host: str) -> None:
    assert accepted(run, tls_harness.server(), security(**tls_harness.settings), host) == "TLSv1.3"


def test_the_broker_is_given_its_name(run: Run, tls_harness: TlsHarness) -> None:
    names: list[str | None] = []
    server = tls_harness.server()
    server.sni_callback = lambda _, name, __: names.append(name)
    accepted(run, server, security(**tls_harness.settings), "localhost")
    assert names == ["localhost"]


def test_a_version_of_tls_can_be_left_out(run: Run, tls_harness: TlsHarness) -> None:
    for change in ({"ssl_protocol": "TLSv1.2"}, {"ssl_enabled_protocols": ["TLSv1.2"]}):
        assert accepted(run, tls_harness.server(), security(**tls_harness.settings, **change)) == "TLSv1.2"
    old = tls_harness.server()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert accepted(run, old, security(**tls_harness.settings)) == "TLSv1.2"
    only = security(**tls_harness.settings, ssl_enabled_protocols=["TLSv1.3"])
    assert "none of our TLS versions (ssl.enabled.protocols)" in refused(run, old, only)


def test_no_cipher_in_common(run: Run, tls_harness: TlsHarness) -> None:
    server = tls_harness.server()
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    server.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    how = security(**tls_harness.settings, ssl_cipher_suites="ECDHE-ECDSA-AES128-GCM-SHA256")
    assert "no cipher in common (ssl.cipher.suites)" in refused(run, server, how)


def test_a_wrong_host_name(run: Run, tls_harness: TlsHarness) -> None:
    server = tls_harness.server(tls_harness.ca.issue("b7", hosts=("kafka7.example", "10.0.0.7")))
    for host in LOCAL_HOSTS:
        sentence = refused(run, server, security(**tls_harness.settings), host)
        assert (
            f'its certificate "b7" is not for the name {host}, only for kafka7.example, 10.0.0.7' in sentence
        )
    for lax in ("none", ""):
        how = security(**tls_harness.settings, ssl_endpoint_identification_algorithm=lax)
        assert accepted(run, server, how)


def test_an_unknown_ca(run: Run, tls_harness: TlsHarness) -> None:
    server = tls_harness.server(OTHER_CA.issue("b7", hosts=LOCAL_HOSTS))
    sentence = refused(run, server, security(**tls_harness.settings))
    assert 'its certificate "b7", issued by "somebody else", leads to no CA that is trusted here' in sentence
    blind = security(**tls_harness.settings, enable_ssl_certificate_verification=False)
    assert accepted(run, server, blind)


def test_a_certificate_outside_of_its_time(run: Run, tls_harness: TlsHarness) -> None:
    expired = tls_harness.server(tls_harness.ca.issue("b7", hosts=LOCAL_HOSTS, begins_s=-7200, ends_s=-3600))
    assert 'its certificate "b7" has expired on 20' in refused(run, expired, security(**tls_harness.settings))
    early = tls_harness.server(tls_harness.ca.issue("b7", hosts=LOCAL_HOSTS, begins_s=3600, ends_s=7200))
    assert 'its certificate "b7" is not valid before 20' in refused(
        run, early, security(**tls_harness.settings)
    )


def test_a_refused_certificate_is_read_once_a_minute(run: Run, tls_harness: TlsHarness) -> None:
    """Each attempt is one connection; the first one has a second, which reads the certificate."""

    async def test() -> None:
        server = tls_harness.server(OTHER_CA.issue("b7", hosts=LOCAL_HOSTS))
        async with FakeBroker(tls=server) as broker:
            noting = NotingLinks(
                security(**tls_harness.settings), reconnect_backoff_ms=1.0, reconnect_backoff_max_ms=2.0
            )
            node = node_of(broker.port)
            await until(lambda: noting.links.ready(node) is not None or len(noting.states) > 3)
            await until(lambda: len(broker.peers) == len(noting.states) + 1)
            assert len({sentence for _, _, sentence in noting.states}) == 1

    run(test)


def test_the_certificate_of_a_broker_that_has_left_is_forgotten(run: Run, tls_harness: TlsHarness) -> None:
    """Its end was announced every day, and by the metric, until the daemon's own end."""

    async def test() -> None:
        how = security(**tls_harness.settings)
        async with (
            FakeBroker(answer_anything, tls=tls_harness.server()) as first,
            FakeBroker(answer_anything, tls=tls_harness.server()) as second,
        ):
            noting = NotingLinks(how)
            await noting.connect(node_of(first.port, id=1))
            await noting.connect(node_of(second.port, id=2))
            shown = [f"The certificate of broker 127.0.0.1:{each.port}" for each in (first, second)]
            assert {what for what, _ in how.expiries} > set(shown)
            noting.links.update_nodes([node_of(second.port, id=2)])
            assert set(shown) - {what for what, _ in how.expiries} == {shown[0]}
            noting.links.close_all()

    run(test)


def test_one_broker_alone_is_said_once_until_it_is_connected(
    run: Run, tls_harness: TlsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """When all brokers are refused the controller has one sentence for them; one of several would go unseen."""
    how = security(**tls_harness.settings)

    async def test() -> None:
        strange = FakeBroker(tls=tls_harness.server(OTHER_CA.issue("b7", hosts=LOCAL_HOSTS)))
        async with FakeBroker(answer_anything, tls=tls_harness.server()) as good, strange:
            noting = NotingLinks(how, reconnect_backoff_ms=1.0, reconnect_backoff_max_ms=2.0)
            node = node_of(strange.port, id=7)

            async def refused_times(count: int) -> None:
                wanted = len(noting.states) + count
                await until(lambda: noting.links.ready(node) is not None or len(noting.states) >= wanted)

            await refused_times(2)
            assert not caplog.records
            await noting.connect(node_of(good.port, id=1))
            await refused_times(3)
            (said,) = caplog.messages
            assert "leads to no CA" in said
            strange.tls = tls_harness.server()
            link = await noting.connect(node)
            strange.tls = tls_harness.server(OTHER_CA.issue("b7", hosts=LOCAL_HOSTS))
            link.close("cut")
            await refused_times(3)
            assert len(caplog.messages) == 2
            noting.links.close_all()

    with caplog.at_level("WARNING", "sidecar.net.kafka.cluster_links"):
        run(test)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_client_certificates(run: Run, tls_harness: TlsHarness, version: str) -> None:
    change = {"ssl_enabled_protocols": [version]}
    server = tls_harness.server(client_ca=tls_harness.ca)
    assert (
        accepted(run, server, security(**tls_harness.client(tls_harness.ca.issue("us")), **change)) == version
    )
    without = refused(run, server, security(**tls_harness.settings, **change))
    assert "require" in without
    assert "a client certificate" in without
    assert "set ssl.certificate.location and ssl.key.location" in without
    strange = security(**tls_harness.client(OTHER_CA.issue("us")), **change)
    assert "our certificate (ssl.certificate.location)" in refused(run, server, strange)
    late = security(**tls_harness.client(tls_harness.ca.issue("us", begins_s=-99, ends_s=-9)), **change)
    assert "our certificate (ssl.certificate.location) has expired" in refused(run, server, late)


class RawServer:
    """Takes one connection, reads a little, says ``answer`` and closes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(self._answer)

    def __enter__(self) -> RawServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()


def refused_by(answer: bytes, run: Run, how: LinkSecurity) -> str:
    said: list[str] = []

    async def test() -> None:
        noting = NotingLinks(how)
        noting.links.ready(node_of(server.port))
        await until(lambda: bool(noting.states))
        said.append(noting.states[0][2] or "")
        noting.links.close_all()

    with RawServer(answer) as server:
        run(test)
    return said[0]


def test_plaintext_to_a_tls_port(run: Run, tls_harness: TlsHarness) -> None:
    """OpenSSL closes such a connection without a word; others send an alert first."""
    alert = b"\x15\x03\x03\x00\x02\x02\x50"
    assert "set security.protocol to SSL or SASL_SSL" in refused_by(alert, run, security())
    assert "is this a port with TLS or SASL (security.protocol)?" in refused(
        run, tls_harness.server(), security()
    )


def test_tls_to_a_plaintext_port(run: Run, tls_harness: TlsHarness) -> None:
    """Kafka takes the first words for a huge frame and closes; a web server answers in its own words."""
    for answer in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        sentence = refused_by(answer, run, security(**tls_harness.settings))
        assert "is this a plaintext port (security.protocol)?" in sentence


def test_a_handshake_that_never_ends_is_given_up_at_the_setup_timeout(
    run: Run, tls_harness: TlsHarness
) -> None:
    async def test() -> None:
        async with FakeBroker(accepts_only=True) as mute:
            noting = NotingLinks(security(**tls_harness.settings), socket_connection_setup_timeout_ms=200.0)
            noting.links.ready(node_of(mute.port))
            await until(lambda: bool(noting.states))
            assert "not connected and negotiated within" in (noting.states[0][2] or "")

    run(test)


def test_a_broken_record_ends_the_link(run: Run, tls_harness: TlsHarness) -> None:
    async def test() -> None:
        async with FakeBroker(answer_anything, tls=tls_harness.server()) as broker:
            noting = NotingLinks(security(**tls_harness.settings))
            link = await noting.connect(node_of(broker.port))
            await broker.peers[0].loop.sock_sendall(broker.peers[0].sock, b"\x17\x03\x03\x00\x20" + bytes(32))
            await until(lambda: link.is_closed)
            assert "OpenSSL says" in (noting.states[-1][2] or "")
            with pytest.raises(LinkError):
                link.send_buffers(1, [b"x"])

    run(test)


def test_the_cause_is_said_though_the_second_look_hangs(run: Run, tls_harness: TlsHarness) -> None:
    """The certificate is read by a connection of its own, which a broker may accept and leave alone."""

    class Once(FakeBroker):
        async def _serve(self, peer: Peer) -> None:
            if len(self.peers) == 1:
                await super()._serve(peer)

    async def test() -> None:
        async with Once(answer_anything, tls=tls_harness.server()) as broker:
            noting = NotingLinks(
                security(**tls_harness.settings | {"ssl_ca_pem": OTHER_CA.certificate_pem}),
                socket_connection_setup_timeout_ms=3_000,
            )
            noting.links.ready(node_of(broker.port))
            await until(lambda: bool(noting.states))
            sentence = noting.states[0][2]
            assert sentence is not None and "leads to no CA that is trusted here" in sentence
            noting.links.close_all()

    run(test)
