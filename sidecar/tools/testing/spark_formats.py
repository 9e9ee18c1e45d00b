"""Spark's packages for Avro and Protobuf, resolved once from Maven Central into ``.demo/``.

``python -m sidecar.tools.testing.spark_formats`` fetches them; a package that Maven Central does not give is named, and
its tests are skipped.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Final

from client_stub.pipeline.packages import PACKAGES, package_of
from sidecar.tools.testing.kafka_jars import KafkaUnavailable, cache_dir, fetch_jars

POM: Final = "spark_format_pom.xml"


def format_jars(name: str) -> Path:
    """The folder with the package of a format; there is none before it was fetched."""
    return cache_dir() / _folder(name)


def fetch_format(name: str) -> Path:
    """As format_jars(), downloaded the first time. Raises KafkaUnavailable."""
    _, package, version = package_of(name).split(":")
    pom = resources.files("sidecar.tools.testing").joinpath(POM).read_text()
    return fetch_jars(
        _folder(name), pom, {"package": package, "package.version": version}, f"Spark's {package}"
    )


def _folder(name: str) -> str:
    _, package, version = package_of(name).split(":")
    return f"{package}-{version}"


def main() -> None:
    for name in PACKAGES:
        try:
            fetch_format(name)
        except KafkaUnavailable as error:
            print(f"{error} Its tests are skipped.", file=sys.stderr)


if __name__ == "__main__":
    main()
