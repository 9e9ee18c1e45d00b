"""The checkpoint of a stream: a folder with an owner, and one of Spark's checkpoints in it for each output."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from client_stub.pipeline.file import Pipeline, PipelineFaults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER: Final = "pipeline"
"""The file with the pipeline's name."""
_OTHERS: Final = re.compile(r"[^\w.-]+")


class Checkpoint:
    """On any file system that Spark can reach."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._jvm: Any = spark._jvm
        self._folder = folder
        path = self._path(folder)
        self._files: Any = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self._folder = str(path.makeQualified(self._files.getUri(), self._files.getWorkingDirectory()))

    def claim(self, pipeline: Pipeline) -> None:
        """Make this the checkpoint of ``pipeline``. Raises PipelineFaults if it is another's."""
        path = self._path(f"{self._folder}/{OWNER}")
        if not self._files.exists(path):
            stream = self._files.create(path)
            stream.write(bytearray(pipeline.name.encode()))
            stream.close()
            return
        stream = self._files.open(path)
        owner = bytes(stream.readAllBytes()).decode()
        stream.close()
        if owner != pipeline.name:
            raise PipelineFaults(
                [
                    pipeline.fault(
                        ("pipeline", "checkpoint"),
                        f"this is the checkpoint of pipeline {owner}",
                        "give each pipeline its own folder",
                    )
                ]
            )

    def of_output(self, pipeline: Pipeline, index: int) -> str:
        """The folder of one output, named by its step and its topic, so that outputs may change their order."""
        names = [_OTHERS.sub("-", f"{each.view}-{each.label}") for each in pipeline.outputs]
        number = names[: index + 1].count(names[index])
        return f"{self._folder}/{names[index]}{f'-{number}' if number > 1 else ''}"

    def unfinished_batch(self, folder: str) -> int | None:
        """The micro-batch that was begun and not committed: its rows may be in Kafka already."""
        begun, committed = (self._last(f"{folder}/{each}") for each in ("offsets", "commits"))
        return begun if begun > committed else None

    def _last(self, folder: str) -> int:
        path = self._path(folder)
        if not self._files.exists(path):
            return -1
        names = [each.getPath().getName() for each in self._files.listStatus(path)]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)
