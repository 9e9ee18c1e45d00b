"""Rules between settings, checked once before anything starts (Kafka's ProducerConfig, KIP-679).

The loader calls ``conclude``; controller and workers call the small functions, on their loops.

All conflicts are reported together, so that the user corrects the file once. ``config_of`` builds the configuration
dataclasses from the checked values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from client_stub.contract.wire import TCP_PREFIX
from sidecar.config.sasl_settings import unused_sasl_settings
from sidecar.config.setting import Value
from sidecar.config.settings import BY_NAME, SETTINGS, ConfigError, SidecarConfig
from sidecar.config.tls_settings import tls_faults, tls_warnings
from sidecar.config.topic_patterns import covered

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Config = TypeVar("Config", bound=DataclassInstance)

_BY_FIELD = {row.key.replace(".", "_"): row.name for row in SETTINGS}
_HARD_LIMIT_IN_FLIGHT = 5
POOL_PAGES_MIN = 64


def conclude(config: SidecarConfig) -> SidecarConfig:
    """Fill in values that follow from other settings, and check the relations.

    ``config.sources`` says which values the user has set; as in Kafka, defaults give way to them. Raises ConfigError,
    which lists every conflict.
    """
    values = dict(config.values)
    faults: list[str] = []
    warnings: list[str] = list(config.warnings)
    set_by_user = config.sources

    values["acks"] = acks = acks_number(values["acks"])
    _conclude_idempotence(values, acks, faults, warnings)
    _conclude_delivery_timeout(values, set_by_user, faults, warnings)
    _check_partitioner(values, faults)
    if values["compression.gzip.level"] == 0:
        faults.append("compression.gzip.level = 0 must be 1 … 9, or -1 for the codec's own default.")
    topics = {
        pattern: _conclude_topic(pattern, keys, values, set_by_user, faults, warnings)
        for pattern, keys in config.topics.items()
    }
    for pattern, earlier in covered(tuple(topics)):
        warnings.append(
            f'topics."{pattern}" has no effect: topics."{earlier}" precedes it and matches its topics; put it '
            "first in the file."
        )
    for name in ("retry.backoff", "reconnect.backoff", "socket.connection.setup.timeout"):
        first, most = _int(values, f"{name}.ms"), _int(values, f"{name}.max.ms")
        if first > most:
            # As Kafka: warn, and use the maximum from the first attempt on.
            warnings.append(f"{name}.ms ({first}) is over {name}.max.ms ({most}); every wait is {most} ms.")
            values[f"{name}.ms"] = most
    _check_memory(values, faults)
    _check_servers(values, faults)
    _check_security(values, set_by_user, faults, warnings)
    faults += tls_faults(values)
    warnings += tls_warnings(values, set_by_user)
    if values["topic.metadata.refresh.interval.ms"] == 0:
        warnings.append(
            "topic.metadata.refresh.interval.ms = 0 asks for metadata after each send; that is costly."
        )
    page_bytes = _int(values, "pool.page_bytes")
    if page_bytes & (page_bytes - 1):
        faults.append(f"pool.page_bytes = {page_bytes} must be a power of two, such as 16384.")
    if values["pool.sync"] == "accept" and not values["pool.path"]:
        faults.append(
            "pool.sync = accept needs pool.path: a file on a disk, such as /var/lib/kafka-sidecar/pool."
        )
    _check_http(values, faults)
    _check_listen(values, faults)
    if faults:
        raise ConfigError(faults)
    return replace(config, values=values, topics=topics, warnings=tuple(warnings))


def config_of(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Build a dataclass from concluded ``values``: each field takes the setting of its name, with dots for
    underscores.

    A setting of the daemon's own goes by its key: ``batch_growth_bytes`` is ``daemon.batch_growth_bytes``. Raises
    KeyError for a field that is no setting. Defaults are in SETTINGS only.
    """
    return kind(**{each.name: values[_BY_FIELD[each.name]] for each in fields(kind)})


UNIX_PREFIX: Final = "unix:"


def acks_number(value: Value) -> int:
    return -1 if value == "all" else int(str(value))


def parse_address(text: str) -> tuple[str, int] | None:
    """``host:port`` or ``[v6]:port`` as (host, port); None for any other text."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        return None
    return host, int(port)


def unix_path(listen: str) -> str | None:
    """The path of ``unix:PATH``; None for another address."""
    return listen.removeprefix(UNIX_PREFIX) if listen.startswith(UNIX_PREFIX) else None


def tcp_address(listen: str, offset: int = 0) -> tuple[str, int] | None:
    """(host, port + ``offset``) of ``tcp://host:port``; None for any other text, or beyond the last port."""
    address = parse_address(listen.removeprefix(TCP_PREFIX)) if listen.startswith(TCP_PREFIX) else None
    if address is None or not address[1] or address[1] + offset > 65_535:
        return None
    return address[0], address[1] + offset


def _check_listen(values: dict[str, Value], faults: list[str]) -> None:
    listen, key_file = str(values["daemon.listen"] or ""), values["daemon.curve_key_file"]
    if listen and tcp_address(listen, _int(values, "daemon.workers")) is None:
        faults.append(
            f'daemon.listen = "{listen}" must be tcp://host:port, such as tcp://0.0.0.0:9470, with one port for each '
            "worker after it."
        )
    if listen and not key_file:
        faults.append(
            f'daemon.listen = "{listen}" needs daemon.curve_key_file: tcp:// is never open without CURVE, also not on '
            "loopback. kafka-sidecar keygen makes a key."
        )


def _check_http(values: dict[str, Value], faults: list[str]) -> None:
    listen = str(values["http.listen"] or "")
    path = unix_path(listen)
    if listen and not path and parse_address(listen) is None:
        faults.append(
            f'http.listen = "{listen}" must be host:port, such as 127.0.0.1:9464 (port 0: any free one), or unix:PATH.'
        )
    certificate, key = values["http.tls.certificate"], values["http.tls.key"]
    if bool(certificate) != bool(key):
        faults.append("http.tls.certificate and http.tls.key are needed together, or neither.")
    elif certificate and path:
        faults.append(
            "http.tls.certificate is for a port; a UNIX socket (http.listen = unix:PATH) needs no TLS."
        )


def _int(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), name
    return value


def _conclude_idempotence(
    values: dict[str, Value], acks: int, faults: list[str], warnings: list[str]
) -> None:
    wanted = values["enable.idempotence"]
    retries, in_flight = _int(values, "retries"), _int(values, "max.in.flight.requests.per.connection")
    against: list[str] = []
    if acks != -1:
        against.append(f'acks = {acks} (must be "all")')
    if retries == 0:
        against.append("retries = 0 (must be over 0)")
    if in_flight > _HARD_LIMIT_IN_FLIGHT:
        text = f"max.in.flight.requests.per.connection = {in_flight} (at most {_HARD_LIMIT_IN_FLIGHT})"
        # As in Kafka 4: too many requests in flight never switch idempotence off silently.
        if wanted is None and not against:
            faults.append(
                f"Idempotence is on by default and forbids {text}; lower it or set enable.idempotence = "
                f"false."
            )
        elif wanted:
            against.append(text)
    if wanted and against:
        faults.append(
            "enable.idempotence = true forbids " + " and ".join(against) + "; change them or switch it off."
        )
    if wanted is None and against:
        lost = "lost records go unnoticed" if acks == 0 else "a retry may double or reorder records"
        names = " and ".join(each.split(" (")[0] for each in against)
        warnings.append(
            f"{names} switch{'es' if len(against) == 1 else ''} idempotence off: {lost}. "
            "enable.idempotence = false says that this is meant."
        )
    values["enable.idempotence"] = bool(wanted) if wanted is not None else not against


def _conclude_delivery_timeout(
    values: dict[str, Value], set_by_user: Mapping[str, str], faults: list[str], warnings: list[str]
) -> None:
    linger, request = _int(values, "linger.ms"), _int(values, "request.timeout.ms")
    delivery = _int(values, "delivery.timeout.ms")
    if delivery >= linger + request:
        return
    if "delivery.timeout.ms" in set_by_user:
        faults.append(
            f"delivery.timeout.ms = {delivery} must be at least linger.ms + request.timeout.ms = "
            f"{linger + request}."
        )
    else:
        values["delivery.timeout.ms"] = linger + request
        warnings.append(
            f"delivery.timeout.ms is raised to linger.ms + request.timeout.ms = {linger + request}."
        )


def _check_partitioner(values: Mapping[str, Value], faults: list[str]) -> None:
    chosen = values["partitioner"]
    if values["partitioner.ignore.keys"] and chosen != "murmur2":
        faults.append(
            f"partitioner.ignore.keys = true is for partitioner = murmur2, not {chosen}: drop one of them."
        )
    if values["partitioner.rack.aware"] and not values["client.rack"]:
        faults.append("partitioner.rack.aware = true needs client.rack: set it to this host's rack.")


def _conclude_topic(
    pattern: str,
    keys: Mapping[str, Value],
    values: Mapping[str, Value],
    set_by_user: Mapping[str, str],
    faults: list[str],
    warnings: list[str],
) -> dict[str, Value]:
    """Apply the same rules to one pattern. Settings that it lacks count as for all topics."""
    own = dict(keys)
    if "acks" in own:
        own["acks"] = acks_number(own["acks"])
        if own["acks"] == -1 and not values["enable.idempotence"]:
            warnings.append(
                f'topics."{pattern}": acks = all is without idempotence, which is off for all topics.'
            )
    if own.get("compression.gzip.level") == 0:
        faults.append(f'topics."{pattern}".compression.gzip.level = 0 must be 1 … 9, or -1.')
    together = {**values, **own}
    needed = _int(together, "linger.ms") + _int(together, "request.timeout.ms")
    if _int(together, "delivery.timeout.ms") < needed:
        if "delivery.timeout.ms" in own or "delivery.timeout.ms" in set_by_user:
            faults.append(
                f'topics."{pattern}": delivery.timeout.ms = {together["delivery.timeout.ms"]} must be at '
                f"least linger.ms + request.timeout.ms = {needed}."
            )
        else:
            own["delivery.timeout.ms"] = needed
            warnings.append(f'topics."{pattern}": delivery.timeout.ms is raised to {needed}.')
    return own


def _check_memory(values: dict[str, Value], faults: list[str]) -> None:
    request = _int(values, "max.request.size")
    buffers = _int(values, "daemon.request_buffers_bytes")
    if buffers < 2 * request:
        faults.append(
            f"daemon.request_buffers_bytes = {buffers} must be at least 2 × max.request.size = "
            f"{2 * request}: "
            "raise it or lower max.request.size."
        )
    memory, page = _int(values, "buffer.memory"), _int(values, "pool.page_bytes")
    # One topic may hold at most half of the pool, so a larger record could never be accepted.
    needed = max(POOL_PAGES_MIN * page, 2 * (request + page))
    if memory < needed:
        faults.append(
            f"buffer.memory = {memory} is too small: with max.request.size = {request} and "
            f"pool.page_bytes = {page} it must be at least {needed}."
        )


def _check_servers(values: dict[str, Value], faults: list[str]) -> None:
    servers = values["bootstrap.servers"]
    if not servers:
        faults.append(
            "bootstrap.servers is not set: put it into [kafka] of the file, "
            "or give -X bootstrap.servers=host:port."
        )
        return
    assert isinstance(servers, list)
    for server in servers:
        if parse_address(server) is None:
            faults.append(f'bootstrap.servers has "{server}": must be host:port, such as kafka1:9092.')


def _check_security(
    values: dict[str, Value], set_by_user: Mapping[str, str], faults: list[str], warnings: list[str]
) -> None:
    protocol = str(values["security.protocol"])
    if protocol.startswith("SASL"):
        from sidecar.config.sasl_rules import conclude_sasl  # not for workers without SASL

        conclude_sasl(values, faults, warnings)
    else:
        warnings += unused_sasl_settings(values, set_by_user)


assert "bootstrap.servers" in BY_NAME
