"""Goal: kafka-sidecar txn says in one sentence why it has no answer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from sidecar.cli.main import cli
from sidecar.tools.testing.fake_broker import FakeBroker

pytestmark = pytest.mark.process


def txn(servers: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["txn", *words, "-X", f"bootstrap.servers={servers}"])


def test_cluster_that_is_away_is_named() -> None:
    found = txn("127.0.0.1:1", "list")
    assert found.exit_code == 1
    assert "127.0.0.1:1 cannot be connected to" in found.stderr


@pytest.mark.parametrize("words", [("list",), ("show", "copy"), ("abort", "copy")])
def test_brokers_without_these_requests_are_named(words: tuple[str, ...]) -> None:
    with FakeBroker({"orders": 1}) as broker:
        found = txn(broker.bootstrap_servers, *words, "--json")
    assert found.exit_code == 1
    assert "it needs Kafka 3.0" in json.loads(found.stdout)["error"]


def test_wrong_configuration_is_a_usage_error() -> None:
    found = txn("no address", "list")
    assert found.exit_code == 2 and "bootstrap.servers" in found.stderr
