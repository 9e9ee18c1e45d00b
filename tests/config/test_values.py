"""Values of settings by type: text of -X and variables, and values of TOML."""

from __future__ import annotations

import datetime

import pytest

from sidecar.config.client_settings import CLIENT_KEYS
from sidecar.config.setting import LONG_MAX, Value
from sidecar.config.settings import BY_NAME
from sidecar.config.values import value_of

ROWS = {**BY_NAME, **{f"clients.{key}": row for key, row in CLIENT_KEYS.items()}}


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("linger.ms", 5, 5),
        ("linger.ms", " 5 ", 5),
        ("linger.ms", 5.0, 5),
        ("linger.ms", 0, 0),
        ("buffer.memory", "128MB", 128 << 20),
        ("buffer.memory", "64 mib", 64 << 20),
        ("buffer.memory", "1g", 1 << 30),
        ("daemon.shutdown_timeout_s", 1, 1.0),
        ("daemon.shutdown_timeout_s", "1e1", 10.0),
        ("enable.idempotence", True, True),
        ("enable.idempotence", "Yes", True),
        ("enable.idempotence", "off", False),
        ("enable.idempotence", 0, False),
        ("bootstrap.servers", "a:1, ,b:2", ["a:1", "b:2"]),
        ("bootstrap.servers", ["a:1"], ["a:1"]),
        ("daemon.cpus", "0,2", [0, 2]),
        ("daemon.cpus", 3, [3]),
        ("daemon.cpus", [1, "2"], [1, 2]),
        ("clients.uids", ["app", 1000], ["app", "1000"]),
        ("clients.uids", 1000, ["1000"]),
        ("acks", "all", "all"),
        ("acks", -1, "-1"),
        ("client.id", 7, "7"),
    ],
)
def test_it_is_taken(name: str, raw: object, value: Value) -> None:
    found = value_of(ROWS[name], raw)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("linger.ms", True),
        ("linger.ms", 1.5),
        ("linger.ms", "5.5"),
        ("linger.ms", "64KB"),
        ("linger.ms", -1),
        ("linger.ms", LONG_MAX + 1),
        ("linger.ms", None),
        pytest.param("linger.ms", "9" * 5_000, id="5,000 digits"),
        ("linger.ms", datetime.date(2020, 1, 1)),
        ("buffer.memory", "64XB"),
        ("daemon.shutdown_timeout_s", "inf"),
        ("daemon.shutdown_timeout_s", float("nan")),
        ("daemon.shutdown_timeout_s", False),
        pytest.param("daemon.shutdown_timeout_s", 10**400, id="10**400"),
        ("enable.idempotence", 2),
        ("enable.idempotence", "maybe"),
        ("enable.idempotence", None),
        ("bootstrap.servers", 5),
        ("bootstrap.servers", [5]),
        ("bootstrap.servers", {"a": 1}),
        ("daemon.cpus", [-1]),
        ("daemon.cpus", [True]),
        ("daemon.cpus", "a"),
        ("acks", "2"),
        ("acks", True),
        ("client.id", ["a"]),
    ],
)
def test_it_is_refused(name: str, raw: object) -> None:
    with pytest.raises(ValueError):
        value_of(ROWS[name], raw)
