"""Converts PKCS12 to PEM in memory. The only file that needs ``cryptography`` (the extra ``[pkcs12]``).

``tls_files`` calls it, in the thread that reads certificates.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12


def pem_of_pkcs12(data: bytes, password: str | None) -> tuple[str, str | None]:
    """(certificates, the key's own first; the key, or None). Raises ValueError: not PKCS12, or a wrong password."""
    store = load_pkcs12(data, None if password is None else password.encode())
    own = [] if store.cert is None else [store.cert]
    chain = "".join(
        each.certificate.public_bytes(Encoding.PEM).decode() for each in (*own, *store.additional_certs)
    )
    if store.key is None:
        return chain, None
    return chain, store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
