"""Certificates and tokens of the test kit, judged by OpenSSL; and that the demo does without their makers."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from sidecar.tools.testing.certificates import LOCAL_HOSTS, Certificate, CertificateAuthority
from sidecar.tools.testing.token_server import Fault, TokenServer


def judged(certificate: Certificate, authority: CertificateAuthority, host: str, folder: Path) -> str:
    """OpenSSL's opinion of a server with that certificate: "" or its words."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate.write(folder / "server.pem"))
    client_context = ssl.create_default_context(cadata=authority.certificate_pem)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    return ""


@pytest.mark.parametrize(
    ("hosts", "begins_s", "ends_s", "words"),
    [
        (LOCAL_HOSTS, -10, 100, ""),
        (("broker.example",), -10, 100, "mismatch"),
        (LOCAL_HOSTS, -100, -10, "expired"),
        (LOCAL_HOSTS, 100, 200, "not yet valid"),
    ],
)
def test_each_certificate_is_what_it_is_called(
    hosts: tuple[str, ...], begins_s: float, ends_s: float, words: str, tmp_path: Path
) -> None:
    authority = CertificateAuthority()
    made = authority.issue("broker", hosts=hosts, begins_s=begins_s, ends_s=ends_s)
    for host in LOCAL_HOSTS:
        said = judged(made, authority, host, tmp_path)
        assert words in said and bool(words) == bool(said)
    assert "self-signed" in judged(made, CertificateAuthority(), "localhost", tmp_path)


def test_a_key_with_a_password_needs_it(tmp_path: Path) -> None:
    made = CertificateAuthority().issue("client")
    path = made.write(tmp_path / "client.pem", password="p ä")
    assert path.stat().st_mode & 0o777 == 0o600
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(path, password="p ä".encode())
    with pytest.raises(ssl.SSLError):
        context.load_cert_chain(path, password="wrong")


def ask(tokens: TokenServer, secret: str = "secret") -> tuple[int, str]:
    fields = {"grant_type": "client_credentials", "client_id": "me", "client_secret": secret, "scope": "all"}
    try:
        with urllib.request.urlopen(
            tokens.token_url, urllib.parse.urlencode(fields).encode(), timeout=10
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_token_server_answers_and_fails_as_it_is_asked() -> None:
    with TokenServer(clients={"me": "secret"}) as tokens:
        status, body = ask(tokens)
        assert status == 200 and json.loads(body)["access_token"].count(".") == 2
        assert (tokens.requests[-1].client_id, tokens.requests[-1].scope) == ("me", "all")
        assert ask(tokens, "wrong")[0] == 401
        for fault, status, words in [
            (Fault.UNAUTHORIZED, 401, "invalid_client"),
            (Fault.SERVER_ERROR, 500, "Error"),
            (Fault.HTML, 200, "<html>"),
            (Fault.NO_TOKEN, 200, "Bearer"),
            (Fault.NO_JWT, 200, "opaque"),
        ]:
            tokens.fault = fault
            found, body = ask(tokens)
            assert found == status and words in body
        tokens.fault = Fault.DOWN
        with pytest.raises(OSError):
            ask(tokens)
        tokens.fault = Fault.SLOW
        mend = threading.Timer(0.1, setattr, (tokens, "fault", None))
        mend.start()
        assert ask(tokens)[0] == 200
        mend.join()


def test_a_cluster_without_listeners_needs_no_cryptography() -> None:
    """`make demo` installs the extra [demo] only."""
    code = (
        "import sys, sidecar.tools.testing.kafka_cluster; "
        "sys.exit(any(name.partition('.')[0] == 'cryptography' for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
