"""A shared archive of the classes that a light broker loads: with it the JVMs of a test start with less CPU time.

``python -m sidecar.tools.testing.kafka_archive [VERSION]`` writes it beside the jars. A JVM that it does not fit, such
as another Java's, ignores it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_jars import archive_of, resolve_jars


def make_archive(version: str | None = None) -> Path:
    """Start a broker, stop it cleanly, which writes the archive, and return its path. An existing one stays."""
    archive = archive_of(resolve_jars(version))
    if archive.exists():
        return archive
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    options = [f"-XX:ArchiveClassesAtExit={partial}"]
    with KafkaCluster(
        version=version, heap_mb=256, light=True, topics={"t": 1}, jvm_options=options
    ) as cluster:
        cluster.stop_node(0)
    partial.rename(archive)
    return archive


if __name__ == "__main__":
    print(make_archive(sys.argv[1] if len(sys.argv) > 1 else None))
