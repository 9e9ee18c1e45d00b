"""Goal: the names of TLS settings that two worlds use, and what they must not say together."""

from __future__ import annotations

import pytest

from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError

SERVERS = "bootstrap.servers=localhost:9092"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["ssl.ca.location=/a", "ssl.truststore.location=/b"], "both name the CA: keep one"),
        (["ssl.certificate.location=/a"], "there is only a certificate: set ssl.key.location"),
        (["ssl.key.location=/a"], "there is only a key: set ssl.certificate.location"),
        (["ssl.enabled.protocols=TLSv1.1"], 'has "TLSv1.1": must be of TLSv1.2, TLSv1.3'),
        (["ssl.enabled.protocols="], "has nothing: must be of"),
        (["ssl.enabled.protocols=TLSv1.3", "ssl.protocol=TLSv1.2"], "leave no version"),
        (["ssl.keystore.type=BKS"], "must be one of PEM, PKCS12, JKS"),
        (["ssl.keymanager.algorithm=PKIX"], "is not taken"),
    ],
)
def test_conflicts_are_one_sentence(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, [SERVERS, *overrides], {})
    (sentence,) = refused.value.sentences
    assert words in sentence


def test_tls_settings_without_tls_are_warned_of() -> None:
    (warning,) = load_config(None, [SERVERS, "ssl.ca.location=/etc/ca.pem"], {}).warnings
    assert "has no effect with security.protocol = PLAINTEXT" in warning


def test_blind_trust_is_warned_of() -> None:
    blind = ["security.protocol=SSL", "enable.ssl.certificate.verification=false"]
    (warning,) = load_config(None, [SERVERS, *blind], {}).warnings
    assert "anybody on the way to the brokers can" in warning
