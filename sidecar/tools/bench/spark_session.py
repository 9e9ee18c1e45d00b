"""The Spark session of a bench process, its rows, and what its JVM and Python workers have used."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.tools.testing.process_stats import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def session(name: str, class_path: str, master: str = "local[2]") -> SparkSession:
    """A local session whose Python workers use this interpreter; ``class_path``: further jars."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraClassPath", class_path)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def key_and_value(spark: SparkSession, rows: int, folder: Path) -> DataFrame:
    """Rows of a 16-byte key and a 100-byte value in two files, of which the page cache has all."""
    path = str(folder / "rows.parquet")
    spark.range(rows, numPartitions=2).selectExpr(
        "cast(lpad(string(id), 16, '0') as binary) key",
        "cast(rpad(concat('value-', id), 100, 'x') as binary) value",
    ).write.parquet(path)
    return spark.read.parquet(path)


def tell(what: str, side: str, unit: str, value: float) -> None:
    """Hand one measured value to the bench, as a line of JSON on stdout."""
    print(json.dumps([what, side, unit, value]), flush=True)


def spark_cpu_seconds() -> dict[int, float]:
    """The CPU time so far of each process below this one: the JVM and its Python workers."""
    found = {}
    for pid in _descendants(os.getpid()):
        try:
            found[pid] = cpu_seconds([pid])
        except OSError:  # it has just ended
            continue
    return found


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        # The name of a program may have blanks and brackets; the state and the parent follow the last one.
        parent = int(text.rpartition(")")[2].split()[1])
        parents.setdefault(parent, []).append(int(stat.parent.name))
    found, below = [], [root]
    while below:
        children = parents.get(below.pop(), [])
        found += children
        below += children
    return found
