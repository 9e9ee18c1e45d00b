"""A CA made for the tests, and what brokers and links need of it."""

from __future__ import annotations

import itertools
import ssl
from pathlib import Path

from sidecar.tools.testing.certificates import LOCAL_HOSTS, Certificate, CertificateAuthority


class TlsHarness:
    """``settings`` make a link trust the CA. Files are written into ``folder``."""

    def __init__(self, ca: CertificateAuthority, folder: Path) -> None:
        self.ca = ca
        self.folder = folder
        self.settings: dict[str, object] = {"security_protocol": "SSL", "ssl_ca_pem": ca.certificate_pem}
        self._numbers = itertools.count()

    def server(
        self, certificate: Certificate | None = None, *, client_ca: CertificateAuthority | None = None
    ) -> ssl.SSLContext:
        """A broker's context, by default with a good certificate. With ``client_ca`` clients need one of it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own = certificate or self.ca.issue("broker", hosts=LOCAL_HOSTS)
        context.load_cert_chain(self.file(own))
        if client_ca is not None:
            context.load_verify_locations(cadata=client_ca.certificate_pem)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def file(self, certificate: Certificate, password: str | None = None) -> Path:
        """Key and chain in one new file."""
        return certificate.write(self.folder / f"{next(self._numbers)}.pem", password)

    def client(self, certificate: Certificate) -> dict[str, object]:
        """Settings for showing this certificate to brokers."""
        return {
            **self.settings,
            "ssl_certificate_pem": certificate.certificate_pem,
            "ssl_key_pem": certificate.key_pem(),
        }
