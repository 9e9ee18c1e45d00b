"""Goal: certificates and keys in every form people have; each fault is one sentence with setting and file."""

from __future__ import annotations

import asyncio
import builtins
import os
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from sidecar.net.tls.tls_context import TlsContexts, tls_fault_of
from sidecar.net.tls.tls_files import PEM_BYTES_MAX
from sidecar.tools.testing.certificates import LOCAL_HOSTS, Certificate, CertificateAuthority
from tests.configs import DEFAULTS, security
from tests.patience import PATIENCE_S

from .conftest import Run
from .test_tls_links import accepted, refused
from .tls_harness import TlsHarness

PASSWORD = "p ä\"',;=\\${x} #%"


@pytest.fixture(scope="session")
def own(tls_harness: TlsHarness) -> Certificate:
    return tls_harness.ca.issue("client")


def fault(changes: dict[str, object]) -> str:
    """The one sentence about these settings."""
    sentence = tls_fault_of(DEFAULTS | changes)
    assert sentence is not None
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert PASSWORD not in sentence
    return sentence


def written(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def in_one_line(pem: str) -> str:
    return pem.replace("\n", "\\n")


WAYS = [
    "paths",
    "texts",
    "lines",
    "password",
    "password file",
    "pem stores",
    "pem texts",
    "pkcs12",
    "directory",
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_name_them(
    run: Run, tls_harness: TlsHarness, own: Certificate, tmp_path: Path, way: str
) -> None:
    ca, chain = tls_harness.ca.certificate_pem, own.certificate_pem
    by_path: dict[str, object] = {
        "ssl_ca_location": written(tmp_path / "ca.pem", ca),
        "ssl_certificate_location": written(tmp_path / "cert.pem", chain),
        "ssl_key_location": written(tmp_path / "key.pem", own.key_pem()),
    }
    locked = {**by_path, "ssl_key_location": written(tmp_path / "locked.pem", own.key_pem(PASSWORD))}
    settings: dict[str, dict[str, object]] = {
        "paths": by_path,
        "texts": {"ssl_ca_pem": ca, "ssl_certificate_pem": chain, "ssl_key_pem": own.key_pem()},
        "lines": {
            "ssl_ca_pem": in_one_line(ca),
            "ssl_certificate_pem": chain.replace("\n", " "),
            "ssl_key_pem": in_one_line(own.key_pem()),
        },
        "password": {**locked, "ssl_key_password": PASSWORD},
        "password file": {**locked, "ssl_key_password_file": written(tmp_path / "word", f"{PASSWORD}\n")},
        "pem stores": {
            "ssl_truststore_location": by_path["ssl_ca_location"],
            "ssl_truststore_type": "PEM",
            "ssl_keystore_location": str(own.write(tmp_path / "both.pem")),
        },
        "pem texts": {
            "ssl_truststore_certificates": ca,
            "ssl_keystore_certificate_chain": chain,
            "ssl_keystore_key": own.key_pem(PASSWORD),
            "ssl_key_password": PASSWORD,
        },
        "pkcs12": {
            "ssl_truststore_location": written(tmp_path / "trust.p12", tls_harness.ca.pkcs12(PASSWORD)),
            "ssl_truststore_password": PASSWORD,
            "ssl_keystore_location": written(tmp_path / "own.p12", own.pkcs12(PASSWORD)),
            "ssl_keystore_password": PASSWORD,
        },
        "directory": {**by_path, "ssl_ca_location": str(tmp_path / "cas")},
    }
    if way == "directory":
        (tmp_path / "cas").mkdir()
        tls_harness.ca.write(tmp_path / "cas" / "ca.pem")
        subprocess.run(["openssl", "rehash", str(tmp_path / "cas")], check=True, capture_output=True)
    named = {name.replace("_", "."): value for name, value in settings[way].items()}
    assert tls_fault_of(DEFAULTS | named) is None
    how = security(security_protocol="SSL", **settings[way])
    assert accepted(run, tls_harness.server(client_ca=tls_harness.ca), how) == "TLSv1.3"


@pytest.mark.parametrize(
    "name", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.truststore.location"]
)
def test_a_file_that_is_not_there_empty_or_unreadable(
    tls_harness: TlsHarness, own: Certificate, tmp_path: Path, name: str
) -> None:
    both = str(own.write(tmp_path / "both.pem"))
    rest: dict[str, object] = {}
    if name in ("ssl.certificate.location", "ssl.key.location"):
        rest = {"ssl.certificate.location": both, "ssl.key.location": both}
    path = tmp_path / "x.pem"
    assert fault(rest | {name: str(path)}) == f'{name} = "{path}": there is no such file.'
    path.write_text("")
    assert fault(rest | {name: str(path)}) == f'{name} = "{path}": the file is empty.'
    assert fault(rest | {name: "/proc/self/mem"}) == (
        f'{name} = "/proc/self/mem": the file cannot be read (Input/output error).'
    )
    whole = path.with_name("both.pem").read_text()
    path.write_text(whole[: len(whole) // 4])
    assert fault(rest | {name: str(path), "ssl.truststore.type": "PEM"}) == (
        f'{name} = "{path}": the PEM text is cut off (a BEGIN without its END).'
    )


def test_a_file_has_a_bound(tls_harness: TlsHarness, tmp_path: Path) -> None:
    pem = tls_harness.ca.certificate_pem
    path = written(tmp_path / "ca.pem", pem.ljust(PEM_BYTES_MAX))
    assert tls_fault_of(DEFAULTS | {"ssl.ca.location": path}) is None
    written(tmp_path / "ca.pem", pem.ljust(PEM_BYTES_MAX + 1))
    assert fault({"ssl.ca.location": path}) == f'ssl.ca.location = "{path}": the file has over 8192 KiB.'


def test_keys_that_do_not_open(tls_harness: TlsHarness, own: Certificate, tmp_path: Path) -> None:
    certificate = written(tmp_path / "cert.pem", own.certificate_pem)
    key = written(tmp_path / "key.pem", own.key_pem(PASSWORD))
    names: dict[str, object] = {"ssl.certificate.location": certificate, "ssl.key.location": key}
    place = f'ssl.key.location = "{key}"'
    assert fault(names) == (f"{place}: the key is encrypted; set ssl.key.password or ssl.key.password.file.")
    wrong = fault(names | {"ssl.key.password": PASSWORD + "?"})
    assert wrong == f"{place}: ssl.key.password does not open the key, or the key is damaged."
    written(tmp_path / "key.pem", tls_harness.ca.issue("other").key_pem())
    assert fault(names) == (
        f'{place} is not the key of the certificate in ssl.certificate.location = "{certificate}".'
    )
    written(tmp_path / "key.pem", own.certificate_pem)
    assert "there is no private key in PEM in it" in fault(names)
    written(tmp_path / "key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert "OpenSSL cannot use the key" in fault(names)
    written(tmp_path / "key.pem", own.key_pem())
    written(tmp_path / "cert.pem", own.key_pem())
    assert "there is no certificate in PEM in it" in fault(names)
    written(tmp_path / "cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "a certificate in it cannot be read" in fault(names)


def test_certificates_outside_of_their_time(tls_harness: TlsHarness, tmp_path: Path) -> None:
    for begins_s, ends_s, words in (
        (-7200, -3600, "has expired on 2"),
        (3600, 7200, "is not valid before 2"),
    ):
        certificate = tls_harness.ca.issue("us", begins_s=begins_s, ends_s=ends_s)
        both = str(certificate.write(tmp_path / "both.pem"))
        sentence = fault({"ssl.certificate.location": both, "ssl.key.location": both})
        assert sentence.startswith(f'ssl.certificate.location = "{both}": our certificate {words}')
        assert sentence.endswith(" UTC.")
        alone = certificate.certificate_pem.partition("-----END CERTIFICATE-----\n")
        text = alone[0] + alone[1]
        assert fault({"ssl.ca.pem": text}).startswith(f"ssl.ca.pem: the certificate {words}")
        assert tls_fault_of(DEFAULTS | {"ssl.ca.pem": text + tls_harness.ca.certificate_pem}) is None


def test_stores_of_java(
    tls_harness: TlsHarness, own: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jks = written(tmp_path / "trust.jks", b"\xfe\xed\xfe\xed\0\0\0\2")
    for changes in ({}, {"ssl.truststore.type": "JKS"}):
        sentence = fault({"ssl.truststore.location": jks, **changes})
        assert f"keytool -importkeystore -srckeystore {jks} -destkeystore {jks}.p12" in sentence
    assert "JKS" in fault({"ssl.ca.location": jks})
    p12 = written(tmp_path / "own.p12", own.pkcs12(PASSWORD))
    place = f'ssl.keystore.location = "{p12}"'
    assert fault({"ssl.keystore.location": p12}).startswith(f"{place}: it needs ssl.keystore.password")
    wrong = {"ssl.keystore.location": p12, "ssl.keystore.password": "no"}
    assert fault(wrong).startswith(f"{place}: ssl.keystore.password does not open it")
    trust = written(tmp_path / "trust.p12", tls_harness.ca.pkcs12(PASSWORD))
    keyless = {"ssl.keystore.location": trust, "ssl.keystore.password": PASSWORD}
    assert "there is no private key in it" in fault(keyless)

    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("sidecar.net.tls.pkcs12"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'kafka-sidecar[pkcs12]'" in fault(keyless)


def test_a_directory_without_hash_names(tls_harness: TlsHarness, tmp_path: Path) -> None:
    tls_harness.ca.write(tmp_path / "ca.pem")
    assert f"run `openssl rehash {tmp_path}`" in fault({"ssl.ca.location": str(tmp_path)})


def test_ciphers_that_openssl_does_not_know(tls_harness: TlsHarness) -> None:
    names = {"ssl.ca.pem": tls_harness.ca.certificate_pem, "ssl.cipher.suites": "TLS_FOO"}
    assert 'ssl.cipher.suites = "TLS_FOO": OpenSSL knows none of them' in fault(names)


def test_revoked_certificates(run: Run, tls_harness: TlsHarness, tmp_path: Path) -> None:
    ca = tls_harness.ca
    assert "there is no CRL in PEM in it" in fault(
        {"ssl.ca.pem": ca.certificate_pem, "ssl.crl.location": str(ca.write(tmp_path / "c"))}
    )
    bad, good = (ca.issue(name, hosts=LOCAL_HOSTS) for name in ("bad", "good"))
    path = written(tmp_path / "revoked.pem", ca.revocations(bad))
    how = security(**tls_harness.settings, ssl_crl_location=path)
    assert accepted(run, tls_harness.server(good), how)
    assert 'its certificate "bad" is revoked (ssl.crl.location)' in refused(run, tls_harness.server(bad), how)
    other = written(tmp_path / "other.pem", CertificateAuthority("another").revocations())
    how = security(**tls_harness.settings, ssl_crl_location=other)
    assert "ssl.crl.location has none for its CA" in refused(run, tls_harness.server(good), how)


def test_the_systems_cas(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls_fault_of(DEFAULTS | {"ssl.ca.location": "probe"}) is None
    monkeypatch.setattr("sidecar.net.tls.tls_files.SYSTEM_BUNDLES", ())
    assert "install the package ca-certificates" in fault({})


def test_nothing_is_read_where_nothing_is_checked() -> None:
    assert (
        tls_fault_of(DEFAULTS | {"ssl.ca.location": "/nowhere", "enable.ssl.certificate.verification": False})
        is None
    )


def test_settings_that_change_while_a_thread_reads_are_not_forgotten(
    run: Run, tls_harness: TlsHarness
) -> None:
    """They name the same files, and have other words for OpenSSL."""
    old = DEFAULTS | {"ssl.ca.pem": tls_harness.ca.certificate_pem, "ssl.enabled.protocols": ["TLSv1.2"]}

    async def test() -> None:
        contexts = TlsContexts(old)
        reading = asyncio.create_task(contexts.current())
        await asyncio.sleep(0)
        contexts.use(old | {"ssl.enabled.protocols": ["TLSv1.3"]})
        assert (await reading).maximum_version == ssl.TLSVersion.TLSv1_2
        assert (await contexts.current()).minimum_version == ssl.TLSVersion.TLSv1_3

    run(test)


def test_a_mount_that_is_away_stops_neither_the_loop_nor_connections(
    run: Run,
    tls_harness: TlsHarness,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """stat() of a file there does not return. It was called on the loop, so that the whole daemon stood still."""
    is_back = threading.Event()
    path = written(tmp_path / "ca.pem", tls_harness.ca.certificate_pem)
    real = os.stat
    monkeypatch.setattr("sidecar.net.tls.tls_context.CHECK_S", 0.05)

    def away(place: Any, **how: Any) -> os.stat_result:
        if place == path:
            is_back.wait(PATIENCE_S)
        return real(place, **how)

    async def test() -> None:
        contexts = TlsContexts(DEFAULTS | {"ssl.ca.location": path})
        context = await contexts.current()
        monkeypatch.setattr("sidecar.net.tls.tls_files.os.stat", away)
        assert [await contexts.current() for _ in range(3)] == [context] * 3
        assert len([each for each in threading.enumerate() if each.name == "tls-check"]) == 1
        assert len(caplog.messages) == 1
        tls_harness.ca.write(tmp_path / "new.pem").replace(path)
        is_back.set()
        seen = [await contexts.current() for _ in range(2)]
        assert seen[-1] is not context, "at the latest once the earlier look has ended"

    run(test)


def test_a_file_that_cannot_be_read_holds_up_one_thread_and_no_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an NFS server that is away. Connections give up and are tried again."""
    is_back = threading.Event()
    monkeypatch.setattr("sidecar.net.tls.tls_context.read_material", lambda values: is_back.wait(30))

    def hanging() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "tls-files"]

    async def test() -> None:
        contexts = TlsContexts(DEFAULTS)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await contexts.current()
        assert len(hanging()) == 1

    run(test)
    (thread,) = hanging()
    is_back.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
