"""Goal: an option of exactly-once that cannot be used is refused on the driver, in one line."""

from __future__ import annotations

import pytest

from client_stub.spark.exactly_once.settings import PREFIX_BYTES_MAX, read_exactly_once
from client_stub.spark.options import read_options


def test_defaults() -> None:
    found = read_exactly_once({})
    assert found.transactional_id("0123456789abcdef") == "kafka-sidecar.0123456789abcdef"
    assert (found.timeout_ms, found.commits_topic) == (120_000, "__kafka_sidecar_commits")
    assert not found.is_recorded
    assert found == read_exactly_once({})
    assert found.of_new_run().run != found.of_new_run().run
    assert read_exactly_once({"job.id": "nightly"}).is_recorded


def test_a_prefix_has_its_bound() -> None:
    assert read_exactly_once({"transactional.id.prefix": "é" * (PREFIX_BYTES_MAX // 2)})
    for prefix in ("", "x" * (PREFIX_BYTES_MAX + 1)):
        with pytest.raises(ValueError, match=f"has {len(prefix)} bytes, and must have 1 to 48"):
            read_exactly_once({"transactional.id.prefix": prefix})


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", str(1 << 31), ""])
def test_a_timeout_that_kafka_cannot_have_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"transaction\.timeout\.ms=.* must be a whole number"):
        read_exactly_once({"transaction.timeout.ms": value})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delivery": "exactly-once"}, "use at_least_once or exactly_once"),
        (
            {"delivery": "exactly_once", "kafka.linger.ms": "5"},
            r"set linger\.ms in the daemon's configuration and drop the option\.$",
        ),
        ({"kafka.linger.ms": "5"}, r"drop the option, or let each host start a daemon .*autostart=true\.$"),
        ({"job.id": "x"}, "option 'job.id' is of delivery=exactly_once only"),
        ({"transaction.timeout.ms": "5"}, "is of delivery=exactly_once only"),
        (
            {"delivery": "exactly_once", "sidecar.autostart": "true", "kafka.bootstrap.servers": "k:9092"},
            "all tasks use one: start 'kafka-sidecar run'",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_options(options)
