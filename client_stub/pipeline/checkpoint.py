"""The checkpoint of a stream: a folder with an owner, and one of Spark's checkpoints in it for each output.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from client_stub.pipeline.file import Pipeline, PipelineFaults
from client_stub.pipeline.lease import Lease

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
        owner = self.read(OWNER)
        if owner is None:
            self.write(OWNER, pipeline.name)
        elif owner != pipeline.name:
            what = f"this is the checkpoint of pipeline {owner}"
            raise _refusal(pipeline, what, "give each pipeline its own folder")

    @contextmanager
    def leased(self, pipeline: Pipeline, run: str, on_loss: Callable[[], None]) -> Iterator[None]:
        """No other run has this checkpoint while the block works. Raises PipelineFaults if one has; ``on_loss`` is
        called, in another thread, if one takes it.
        """
        lease = Lease(self, run, on_loss)
        holder = lease.take()
        if holder is not None:
            what = f"run {holder.run} of process {holder.pid} on host {holder.host} runs this stream now"
            raise _refusal(pipeline, what, "end that one first")
        try:
            yield
        finally:
            lease.release()

    def read(self, name: str) -> str | None:
        """The text of a file of the folder; None without it."""
        path = self._path(f"{self._folder}/{name}")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode(errors="replace")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        stream = self._files.create(self._path(f"{self._folder}/{name}"), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        self._files.delete(self._path(f"{self._folder}/{name}"), False)

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


def _refusal(pipeline: Pipeline, what: str, todo: str) -> PipelineFaults:
    return PipelineFaults([pipeline.fault(("pipeline", "checkpoint"), what, todo)])
