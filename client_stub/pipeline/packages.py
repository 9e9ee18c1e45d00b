"""Spark's packages that a pipeline needs and a plain installation of Spark lacks.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from client_stub.pipeline.file import Pipeline
from client_stub.pipeline.keys import AVRO, PROTOBUF

NEWEST: Final = "4.2.0"
"""The newest version that Maven Central has. It works in Spark 4.3, which has no later one."""
PACKAGES: Final = {AVRO: "spark-avro_2.13", PROTOBUF: "spark-protobuf_2.13"}
"""Format → its package."""
KAFKA_PACKAGE: Final = "spark-sql-kafka-0-10_2.13"
"""Of Spark's Kafka source."""
_SETTING: Final = "spark.jars.packages"
_CLASS_PATHS: Final = ("spark.driver.extraClassPath", "spark.jars", _SETTING)


def package_of(name: str) -> str:
    """The Maven coordinates of a format's package for the Spark that is installed."""
    from pyspark import __version__

    version = min(__version__, NEWEST, key=_numbers)
    return f"org.apache.spark:{PACKAGES[name]}:{version}"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:3] if part.isdigit()]


def with_packages(
    pipeline: Pipeline, settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """``settings`` of a session that is about to start, with the packages that its formats need. Under spark-submit
    the session has started, and --packages is the user's.
    """
    if "PYSPARK_GATEWAY_PORT" in environment:
        return dict(settings)
    named = {each.name for output in pipeline.outputs for each in output.formats.values()}
    needed = {*named, pipeline.source.format} & PACKAGES.keys()
    absent = [
        package_of(name) for name in sorted(needed) if not _is_named(PACKAGES[name], settings, environment)
    ]
    if not absent:
        return dict(settings)
    given = [each for each in settings.get(_SETTING, "").split(",") if each]
    return {**settings, _SETTING: ",".join([*given, *absent])}


def _is_named(package: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether the session gets the package anyhow: of Spark's own folder, or by a setting of the user."""
    import pyspark

    home = Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    named = [settings.get(name, "") for name in _CLASS_PATHS]
    named.append(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    folders = [Path(each[:-2]) for text in named for each in text.split(os.pathsep) if each.endswith("/*")]
    return any(package in text for text in named) or any(
        list(folder.glob(f"{package}-*.jar")) for folder in (home / "jars", *folders)
    )
