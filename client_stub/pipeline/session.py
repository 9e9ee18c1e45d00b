"""The Spark session of a run. Without spark-submit Spark's own log goes to a file: a terminal has better uses.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXCEPTION: Final = re.compile(r"^(Exception in thread \S+ )?([\w.$]+(Exception|Error): )+")


class SparkNotStarted(Exception):
    """Why, in one sentence."""


class SparkLog:
    """The file with what the JVM and its Python workers write. One that nobody named is removed, but for failures."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            number, name = tempfile.mkstemp(prefix="kafka-sidecar-spark-", suffix=".log")
            self.path, self.file = Path(name), os.fdopen(number, "wb")
        else:
            self.path, self.file = path, path.open("ab")
        self.is_kept = path is not None
        self.is_used = "PYSPARK_GATEWAY_PORT" not in os.environ

    def __enter__(self) -> SparkLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        if not self.is_kept:
            self.path.unlink(missing_ok=True)

    def reason(self) -> str:
        """The line that says why the JVM has ended: the first exception, else the first line."""
        lines = self.path.read_text(errors="replace").strip().splitlines() or ["it left no word"]
        found = next((line for line in lines if "Exception" in line), lines[0])
        return _EXCEPTION.sub("", found).strip().rstrip(".")


def started_session(name: str, settings: Mapping[str, str], log: SparkLog) -> SparkSession:
    """Raises SparkNotStarted. Under spark-submit the JVM runs already, and its log is where spark-submit has it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark would log each wrong statement with its stack, and the fault says all of it.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAppName(name).setAll(list(settings.items()))
    try:
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            return SparkSession(SparkContext.getOrCreate(conf))
        gateway = launch_gateway(conf, {"stderr": log.file})  # type: ignore[no-untyped-call]
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except PySparkRuntimeError:
        why = log.reason()
    except Exception as error:
        why = str(getattr(error, "java_exception", error))
    raise SparkNotStarted(f"Spark did not start: {' '.join(_EXCEPTION.sub('', why).split()).rstrip('.')}.")
