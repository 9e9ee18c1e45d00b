"""Checks the requirements of a command beyond the daemon's packages, before anything is started or sent."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from sidecar.cli.common import fail

PACKAGES: Final = {
    "confluent_kafka": "confluent-kafka",
    "sidecar.tools.bench": "kafka-sidecar-tools",
    "sidecar.tools.chaos": "kafka-sidecar-tools",
    "sidecar.tools.demo": "kafka-sidecar-tools",
}
"""Module → its package, where their names differ."""


def need_packages(what: str, extra: str, *modules: str) -> None:
    """End with one sentence that names all missing packages of ``extra`` if ``what`` needs ``modules``."""
    missing = dict.fromkeys(PACKAGES.get(each, each) for each in modules if not _is_there(each))
    if missing:
        fail(
            f"{what} needs the [{extra}] extra ({', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing): "
            f"pip install 'kafka-sidecar[{extra}]'."
        )


def need_java(what: str, *, embedded_kafka: bool) -> None:
    """End with one sentence unless there is a JDK and, for an embedded Kafka, its jars or Maven.

    The tools must be installed: call need_packages first.
    """
    from sidecar.tools.demo.host import missing_for_kafka

    why = missing_for_kafka(needs_jars=embedded_kafka)
    if why is not None:
        fail(f"{what} cannot start: {why}")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
