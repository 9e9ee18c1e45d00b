"""Change users, grants and certificates of a running cluster, as an operator would.

As in :mod:`sidecar.tools.testing.kafka_admin`, the clients share no code with ours, and each method waits for its
effect.
"""

from __future__ import annotations

import contextlib
import itertools
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.tools.testing.kafka_admin import set_config
from sidecar.tools.testing.kafka_listeners import SCRAM, Listener, key_store, trust_store
from sidecar.tools.testing.kafka_topics import quiet_config
from sidecar.tools.testing.waiting import wait_until

if TYPE_CHECKING:
    from sidecar.tools.testing.certificates import Certificate, CertificateAuthority

TIMEOUT_S = 60.0
_NETWORK_THREADS = 2
SCRAM_ITERATIONS = 4096
"""Kafka's minimum: tests have few clients."""


class KafkaSecurity:
    """Operator of one cluster's users, grants and certificates; made by ``KafkaCluster.security``.

    Raises KafkaException when the cluster refuses, ConditionTimeout when it is late.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        listeners: Sequence[Listener],
        folder: Path,
        ports: Sequence[Mapping[str, int]],
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin: Any = AdminClient(quiet_config(bootstrap_servers))
        self._listeners = {each.key: each for each in listeners}
        self._folder = folder
        self._ports = ports

    # Users of SCRAM

    def set_first_users(self) -> None:
        """Create the SCRAM users that the listeners name."""
        for each in self._listeners.values():
            for name, password in (each.users or {}).items():
                for mechanism in set(SCRAM).intersection(each.mechanisms):
                    self.set_scram_user(name, password, mechanism)

    def set_scram_user(self, name: str, password: str, mechanism: str) -> None:
        """Create a user, or change its password. Passwords for other mechanisms stay."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialUpsertion,
        )

        info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], SCRAM_ITERATIONS)
        self._alter(UserScramCredentialUpsertion(name, info, password.encode()), name)
        self._wait_scram(name, mechanism, is_there=True)

    def remove_scram_user(self, name: str, mechanism: str) -> None:
        """Remove the user's password for one mechanism; open connections stay until they re-authenticate."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            ScramMechanism,
            UserScramCredentialDeletion,
        )

        self._alter(UserScramCredentialDeletion(name, ScramMechanism[mechanism.replace("-", "_")]), name)
        self._wait_scram(name, mechanism, is_there=False)

    def _alter(self, alteration: Any, name: str) -> None:
        self._admin.alter_user_scram_credentials([alteration])[name].result(TIMEOUT_S)

    def _wait_scram(self, name: str, mechanism: str, *, is_there: bool) -> None:
        def mechanisms() -> set[str]:
            from confluent_kafka import KafkaException

            # A user without any password is reported as an error, RESOURCE_NOT_FOUND.
            with contextlib.suppress(KafkaException):
                described = self._admin.describe_user_scram_credentials([name])[name].result(TIMEOUT_S)
                return {each.mechanism.name.replace("_", "-") for each in described.scram_credential_infos}
            return set()

        wait_until(
            lambda: (mechanism in mechanisms()) == is_there, f"the password of {name}", timeout_s=TIMEOUT_S
        )

    # Grants

    def grant(self, user: str, operation: str, topic: str) -> None:
        """Allow ``operation`` (WRITE, DESCRIBE, ...) on a topic, or on the cluster with topic ``""``."""
        for done in self._admin.create_acls([_binding(user, operation, topic)]).values():
            done.result(TIMEOUT_S)
        self._wait_grant(user, operation, topic, is_there=True)

    def withdraw(self, user: str, operation: str, topic: str) -> None:
        """Withdraw a grant that was given with the same arguments."""
        for done in self._admin.delete_acls([_binding(user, operation, topic, is_filter=True)]).values():
            done.result(TIMEOUT_S)
        self._wait_grant(user, operation, topic, is_there=False)

    def _wait_grant(self, user: str, operation: str, topic: str, *, is_there: bool) -> None:
        wanted = _binding(user, operation, topic, is_filter=True)
        wait_until(
            lambda: bool(self._admin.describe_acls(wanted).result(TIMEOUT_S)) == is_there,
            f"the grant of {operation} on {topic or 'the cluster'} to {user}",
            timeout_s=TIMEOUT_S,
        )

    # Certificates

    def rotate(
        self,
        listener: str,
        certificate: Certificate | None = None,
        *,
        trusted: Sequence[CertificateAuthority] = (),
    ) -> None:
        """Change a running listener's certificate, the authorities of its clients, or both.

        Open connections stay. Returns when new connections get the certificate.
        """
        prefix = f"listener.name.{self._listeners[listener].key.lower()}."
        for number in itertools.count(1):
            store = self._folder / f"{listener}-{number}.pem"
            if not store.exists():
                break
        settings: dict[str, str] = {}
        if certificate is not None:
            settings |= key_store(prefix, certificate.write(store))
        if trusted:
            store.touch()
            bundle = store.with_name(f"{store.stem}-ca.pem")
            bundle.write_text("".join(each.certificate_pem for each in trusted))
            settings |= trust_store(prefix, bundle)
        for index in range(len(self._ports)):
            set_config(self._admin, node_id=index + 1, settings=settings)
        if certificate is not None:
            shown = certificate.certificate_der
            for ports in self._ports:
                wait_until(
                    # Each network thread has its own copy, and serves every n-th connection.
                    lambda port=ports[listener]: all(  # type: ignore[misc]
                        shown_certificate(port) == shown for _ in range(3 * _NETWORK_THREADS)
                    ),
                    f"{listener} to show its new certificate",
                    timeout_s=TIMEOUT_S,
                )


def shown_certificate(port: int) -> bytes | None:
    """Return the certificate (DER) of a server on 127.0.0.1; None when it does not answer."""
    with contextlib.suppress(OSError):
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=5))
    return None


def _binding(user: str, operation: str, topic: str, *, is_filter: bool = False) -> Any:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    return (AclBindingFilter if is_filter else AclBinding)(
        ResourceType.TOPIC if topic else ResourceType.BROKER,
        topic or "kafka-cluster",
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )
