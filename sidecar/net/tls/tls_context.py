"""Makes the SSLContext of the ``ssl.*`` settings, and a new one after a file has changed.

Links ask it for a context on their loop; it reads files in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from sidecar.config.tls_settings import TLS_VERSIONS
from sidecar.net.daemon_thread import in_daemon_thread
from sidecar.net.tls.tls_files import (
    Pem,
    TlsFault,
    TlsMaterial,
    dates_fault,
    expiries_of,
    is_encrypted,
    read_material,
    signature_of,
)

log = logging.getLogger(__name__)

CHECK_S: Final = 1.0
"""How long a connection waits for a check of the files. Then it takes the context of the last reading."""
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def tls_fault_of(values: Mapping[str, Any]) -> str | None:
    """Sentence that says why these settings and files cannot be used, or None. For the check before a start or
    reload.
    """
    try:
        material = read_material(values)
        build_context(values, material)
    except TlsFault as fault:
        return str(fault)
    return dates_fault(material, datetime.now(UTC))


def build_context(values: Mapping[str, Any], material: TlsMaterial) -> ssl.SSLContext:
    """Build a client's context. Raises TlsFault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    enabled = values["ssl.enabled.protocols"] or TLS_VERSIONS
    if values["ssl.protocol"] == "TLSv1.2":
        enabled = ["TLSv1.2"]
    context.minimum_version = min(_VERSIONS[each] for each in enabled)
    context.maximum_version = max(_VERSIONS[each] for each in enabled)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = values["ssl.endpoint.identification.algorithm"] == "https"
    if not values["enable.ssl.certificate.verification"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # Trust every certificate that the user names, root or not, as with a truststore of Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if values["ssl.cipher.suites"]:
        try:
            context.set_ciphers(values["ssl.cipher.suites"])
        except ssl.SSLError:
            raise TlsFault(
                f'ssl.cipher.suites = "{values["ssl.cipher.suites"]}": OpenSSL knows none of them; use its names for '
                "TLS 1.2, with colons between (`openssl ciphers -v`)."
            ) from None
    _trust(context, material)
    if material.chain is not None and material.key is not None:
        _present(context, material.chain, material.key, material.key_password)
    return context


def _trust(context: ssl.SSLContext, material: TlsMaterial) -> None:
    if material.ca_directory is not None:
        context.load_verify_locations(capath=material.ca_directory)
    if material.ca is not None:
        try:
            context.load_verify_locations(cadata=material.ca.text)
        except ssl.SSLError as error:
            raise TlsFault(f"{material.ca.source}: OpenSSL cannot use it ({_reason(error)}).") from None
    if material.crl is not None:
        try:
            with _as_file(material.crl.text) as path:
                context.load_verify_locations(cafile=path)
        except ssl.SSLError as error:
            raise TlsFault(f"{material.crl.source}: OpenSSL cannot use it ({_reason(error)}).") from None
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _present(context: ssl.SSLContext, chain: Pem, key: Pem, password: str | None) -> None:
    # The password function keeps OpenSSL from prompting on a terminal.
    try:
        with _as_file(chain.text) as chain_path, _as_file(key.text) as key_path:
            context.load_cert_chain(chain_path, key_path, lambda: password or "")
    except ssl.SSLError as error:
        if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            text = f"{key.source} is not the key of the certificate in {chain.source}."
        elif is_encrypted(key):
            text = f"{key.source}: ssl.key.password does not open the key, or the key is damaged."
        else:
            text = f"{key.source}: OpenSSL cannot use the key ({_reason(error)})."
        raise TlsFault(text) from None


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Give a path to the text without writing it to disk: Python's OpenSSL interface reads keys from files only."""
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(text.encode("ascii", "replace"))
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "no valid PEM").lower().replace("_", " ")


class TlsContexts:
    """The SSLContext for the next connection. Belongs to the loop's thread.

    Files are checked before each connection (by stat), and read if one has changed. Files that cannot be used are
    reported once; the previous context stays in use until they are valid.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._changes = 0
        self._signature: tuple[object, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._fault: TlsFault | None = None
        self._renewal: tuple[tuple[object, ...], asyncio.Future[None]] | None = None
        """(signature of the files, the reading of them): the last reading."""
        self._check: tuple[int, asyncio.Future[tuple[object, ...]]] | None = None
        """(number of changes, the check of the files): the last check."""
        self._is_stuck = False
        """Whether the last check did not end in time."""
        self.has_certificate = False
        self.expiries: list[tuple[str, float]] = []
        """(description, Unix time of expiry) of the certificates in use."""

    def use(self, values: Mapping[str, Any]) -> None:
        """Use changed settings from the next connection on. Until they work, the present context stays in use."""
        self._values = values
        self._changes += 1

    async def current(self) -> ssl.SSLContext:
        """The context for the present files. Raises TlsFault if there is none and there was none before."""
        values = self._values
        signature = await self._files_state(values)
        if signature is None:
            assert self._context is not None
            return self._context
        if signature != self._signature:
            # Off the loop: reading a PKCS12 takes a tenth of a second of CPU, and a file may be on a slow disk.
            if self._renewal is None or self._renewal[0] != signature or self._renewal[1].done():
                # A connection that gives up does not cancel the reading: files that cannot be read block one thread,
                # not many.
                self._renewal = signature, asyncio.ensure_future(self._renew(values, signature))
            await asyncio.shield(self._renewal[1])
        if self._context is None:
            assert self._fault is not None
            raise self._fault
        return self._context

    async def _files_state(self, values: Mapping[str, Any]) -> tuple[object, ...] | None:
        """Their signature. None if a mount that is away keeps it, and there is a context to continue with."""
        changes = self._changes
        if self._check is None or self._check[0] != changes or self._check[1].done():
            # Off the loop: on a mount that is away stat() does not return.
            checking = in_daemon_thread(partial(signature_of, values), "tls-check")
            self._check = changes, asyncio.ensure_future(checking)
        check = self._check[1]
        await asyncio.wait([check], timeout=None if self._context is None else CHECK_S)
        if not check.done():
            if not self._is_stuck:
                log.warning(
                    "The files of ssl.* cannot be checked: a mount does not answer. Connections continue with what was "
                    "read before."
                )
            self._is_stuck = True
            return None
        self._is_stuck = False
        # With the count of changes: settings may change while a thread reads, and still name the same files.
        return (changes, *check.result())

    async def _renew(self, values: Mapping[str, Any], signature: tuple[object, ...]) -> None:
        try:
            built = await in_daemon_thread(partial(self._build, values), "tls-files")
        except TlsFault as fault:
            if signature != self._signature and self._context is not None:
                log.warning("%s Connections continue with what was read before.", fault)
            self._fault = fault
        else:
            if self._context is not None and signature != self._signature:
                log.info("The files of ssl.* have changed: new connections use them.")
            self._context, self.has_certificate, self.expiries = built
            self._fault = None
        self._signature = signature

    def _build(self, values: Mapping[str, Any]) -> tuple[ssl.SSLContext, bool, list[tuple[str, float]]]:
        material = read_material(values)
        context = build_context(values, material)
        if self._context is not None:
            fault = dates_fault(material, datetime.now(UTC))
            if fault is not None:
                raise TlsFault(fault)
        return context, material.chain is not None, expiries_of(material)
