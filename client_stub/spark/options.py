"""The options of ``format("kafka_sidecar")``, checked on the driver. Their names are lower case, their values str."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

from client_stub.contract.run_dir import RUN_DIR_VARIABLE, default_run_dir
from client_stub.spark.exactly_once.settings import NAMES as EXACTLY_ONCE_NAMES
from client_stub.spark.exactly_once.settings import ExactlyOnce, read_exactly_once

WINDOW_BATCHES: Final = 8
NO_DAEMON: Final = "Each executor host needs a daemon"
"""How the error of a task without a daemon is told from others, when Spark hands on its text only."""
_OWN: Final = (
    "topic",
    "sidecar.run_dir",
    "sidecar.autostart",
    "delivery",
    "window",
    "max.block.ms",
    "sidecar.curve_key_file",
    *EXACTLY_ONCE_NAMES,
)
EXACTLY_ONCE: Final = "exactly_once"
REPORT: Final = "sidecar.report"
"""Internal: the folder in which a write leaves its counts for the pipeline."""
_KNOWN: Final = frozenset({*_OWN, REPORT, "checkpointlocation", "queryname", "includeheaders"})
"""Our options, those of Spark's streams that Spark passes to every sink (queryName() sets one, too), and one of Spark's
Kafka format that its sink does not need either: a column headers is always sent.
"""
OF_KAFKA_SOURCE: Final = frozenset(
    {
        *("subscribe", "subscribepattern", "assign", "startingoffsets", "endingoffsets", "failondataloss"),
        *("startingoffsetsbytimestamp", "endingoffsetsbytimestamp", "startingtimestamp", "endingtimestamp"),
        *("startingoffsetsbytimestampstrategy", "minpartitions", "maxrecordsperpartition", "groupidprefix"),
        *("minoffsetspertrigger", "maxoffsetspertrigger", "maxtriggerdelay", "kafkaconsumer.polltimeoutms"),
        *("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafka.group.id"),
    }
)
"""Of Spark's Kafka source; its sink ignores them."""
SERVERS: Final = "kafka.bootstrap.servers"
_TABLES: Final = ("daemon.", "pool.", "dead_letters.", "http.", "log.")
"""Tables of the daemon's settings: with sidecar.autostart they are options by the names ``sidecar.pool.path`` …"""
_SERIALIZERS: Final = frozenset({"kafka.key.serializer", "kafka.value.serializer"})


class Options(NamedTuple):
    """As read; ``asked`` is what the daemon compares with its own cluster."""

    topic: str | None
    run_dir: str
    """Of the option sidecar.run_dir; empty where each host has its own."""
    window_batches: int
    """How many Arrow batches of one task may wait for their acks."""
    max_block_ms: float
    servers: str = ""
    """kafka.bootstrap.servers."""
    report: str = ""
    """The folder for the counts of this write; empty for none."""
    settings: tuple[tuple[str, str], ...] | None = None
    """With sidecar.autostart: those of the daemon that each host starts for itself."""
    drivers_run_dir: str = ""
    """What the driver's environment names, for hosts whose environment names none."""
    curve_key_file: str = ""
    """For ``tcp://``; empty: KAFKA_SIDECAR_CURVE_KEY_FILE of each host."""
    exactly_once: ExactlyOnce | None = None
    """None: at least once."""

    def run_dir_here(self) -> str:
        """Of the daemon on this host, which may be the driver's or a task's. Raises ValueError when this user has no
        usual one.
        """
        return self.run_dir or os.environ.get(RUN_DIR_VARIABLE) or self.drivers_run_dir or default_run_dir()

    @property
    def asked(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers} if self.servers else {}


def read_options(options: Mapping[str, str]) -> Options:
    """Parse the options. Raises ValueError, in one line, for an option that is not supported."""
    autostart = _flag(options, "sidecar.autostart")
    settings = _settings_of(options) if autostart else None
    run_dir = options.get("sidecar.run_dir", "")
    delivery = options.get("delivery", "at_least_once")
    if delivery not in ("at_least_once", EXACTLY_ONCE):
        raise ValueError(
            f"kafka_sidecar: delivery={delivery} is not known; use at_least_once or exactly_once."
        )
    exactly_once = read_exactly_once(options) if delivery == EXACTLY_ONCE else None
    if exactly_once is None:
        _check_at_least_once(options)
    elif autostart:
        raise ValueError(
            "kafka_sidecar: sidecar.autostart starts a daemon on each host, and with delivery=exactly_once all tasks "
            "use one: start 'kafka-sidecar run' and set sidecar.run_dir, on many hosts to tcp://host:port."
        )
    for name in options:
        if name in OF_KAFKA_SOURCE:
            raise ValueError(
                f"kafka_sidecar: option '{name}' is of Spark's Kafka source, and this format only writes: leave it out."
            )
        if name.startswith("kafka."):
            _check_kafka_option(name, autostart=autostart, may_autostart=exactly_once is None)
        elif name not in _KNOWN and not (autostart and _is_of_daemon(name)):
            found = get_close_matches(name, _OWN, n=1)
            hint = f"did you mean '{found[0]}'?" if found else f"options are {', '.join(_OWN)}."
            raise ValueError(f"kafka_sidecar: option '{name}' is not known; {hint}")
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise ValueError("kafka_sidecar: option topic is empty.")
    window = _number(options, "window", WINDOW_BATCHES)
    if window < 1:
        raise ValueError(f"kafka_sidecar: option window={window} must be at least 1 (Arrow batches).")
    max_block_ms = _number(options, "max.block.ms", 60_000)
    if max_block_ms < 0:
        raise ValueError(f"kafka_sidecar: option max.block.ms={max_block_ms} must not be negative.")
    servers, report = options.get(SERVERS, ""), options.get(REPORT, "")
    drivers = os.environ.get(RUN_DIR_VARIABLE, "")
    key_file = options.get("sidecar.curve_key_file", "")
    return Options(
        topic, run_dir, window, max_block_ms, servers, report, settings, drivers, key_file, exactly_once
    )


def _check_at_least_once(options: Mapping[str, str]) -> None:
    """An option that only the other delivery has would promise what is not there."""
    for name in EXACTLY_ONCE_NAMES:
        if name in options:
            raise ValueError(f"kafka_sidecar: option '{name}' is of delivery=exactly_once only.")


def _is_of_daemon(name: str) -> bool:
    return name.startswith(tuple(f"sidecar.{table}" for table in _TABLES))


def _settings_of(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The daemon's configuration: ``kafka.*`` by Kafka's names, and the daemon's own tables."""
    if options.get("sidecar.run_dir"):
        raise ValueError(
            "kafka_sidecar: sidecar.autostart and sidecar.run_dir exclude each other: the daemon that is started has a "
            "run directory of its own."
        )
    if not options.get(SERVERS):
        raise ValueError(f"kafka_sidecar: sidecar.autostart needs the option {SERVERS}.")
    kafka = {
        name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")
    }
    own = {name.removeprefix("sidecar."): value for name, value in options.items() if _is_of_daemon(name)}
    return tuple(sorted({**kafka, **own}.items()))


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in {"true", "false"}:
        raise ValueError(f"kafka_sidecar: option {name}={text} must be true or false.")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"kafka_sidecar: option {name}={text} must be a whole number.") from None


def _check_kafka_option(name: str, *, autostart: bool, may_autostart: bool) -> None:
    if name in _SERIALIZERS:
        raise ValueError(
            f"kafka_sidecar: option '{name}' is not supported: keys and values are written as string or binary columns."
        )
    if name != SERVERS and not autostart:
        instead = ", or let each host start a daemon for this query by sidecar.autostart=true"
        raise ValueError(
            f"kafka_sidecar: option '{name}' is a setting of the daemon, which all its clients share; "
            f"set {name.removeprefix('kafka.')} in the daemon's configuration and drop the option"
            f"{instead if may_autostart else ''}."
        )
