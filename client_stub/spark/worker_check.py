"""Checks that the Python of Spark's workers has what the format needs; the error says what to set."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SIGNS: Final = ("No module named", "VERSION_MISMATCH", "ImportError: ")
"""What the line of the reason has, among those of the JVM."""


def check_workers(spark: SparkSession) -> None:
    """Run one task that imports the format. Raises RuntimeError, in one line, when that fails.

    A session of Spark Connect is not checked, as its workers belong to the server.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has its own error, in a package that classic sessions do not have
        return
    try:
        context.parallelize([0], 1).map(_what_is_there).collect()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines()]
        why = next((line for line in lines if any(sign in line for sign in _SIGNS)), lines[0])
        raise RuntimeError(
            f"kafka_sidecar: the Python of Spark's workers ({context.pythonExec}) cannot write: {why.rstrip('.')}. Set "
            f"PYSPARK_PYTHON={sys.executable} before the session starts, or install 'kafka-sidecar[spark]' there."
        ) from error


def _what_is_there(_: int) -> str:
    import pyarrow  # noqa: F401  the format imports it with the first batch only

    import client_stub.spark.datasource as format_  # with pyarrow, msgpack and pyspark.sql

    return format_.__name__
