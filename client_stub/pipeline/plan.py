"""The data frames of a pipeline: the source, a view for each step, and for each output the columns of the sink.

On the driver, in the process of the pipeline's command or of spark-submit.

Nothing is read or sent here but what Spark needs to infer a schema. Faults are gathered, so that ``check`` finds all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from client_stub.pipeline.file import SOURCE, Fault, Output, Pipeline, PipelineFaults, SqlStep
from client_stub.pipeline.formats import Encoding, Formats
from client_stub.pipeline.keys import VARIABLE
from client_stub.pipeline.packages import KAFKA_PACKAGE, NEWEST
from client_stub.spark.columns import type_fault

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from client_stub.pipeline.positions import Path

_POSITION: Final = re.compile(r"\(?line (\d+), pos (\d+)\)?|line (\d+) pos (\d+)")
_SQLSTATE: Final = re.compile(r" SQLSTATE: \w+;?")
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] .*")
KAFKA_MISSING: Final = "[KAFKA_DATA_SOURCE_NOT_ENABLED]"
KAFKA_TODO: Final = f"name its package: --conf spark.jars.packages=org.apache.spark:{KAFKA_PACKAGE}:{NEWEST}"
COUNT: Final = "rows"


@dataclass
class OutputPlan:
    """An output whose expressions are right: its step's rows, the type of each part of a record, and the encodings
    of those parts that are not sent as they are. ``has_file``: whether Spark knows the source file of a row, which it
    does not after a join.
    """

    index: int
    output: Output
    frame: DataFrame
    types: dict[str, DataType]
    encodings: dict[str, Encoding] = field(default_factory=dict)
    has_file: bool = True

    def part(self, name: str) -> Column:
        """The column of one part of the record."""
        column = f.expr(self.output.expressions[name])
        return self.encodings[name].encode(column) if name in self.encodings else column


class Planner:
    """Makes the frames of one pipeline in one session, of a batch or of a stream."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, *, is_stream: bool | None = None) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._is_stream = pipeline.is_stream if is_stream is None else is_stream
        self._source_frame: DataFrame | None = None
        self._formats = Formats(spark, pipeline)
        self._with_files: dict[int, bool] = {}
        self.faults: list[Fault] = []

    def views(self, observed: Mapping[str, Any] | None = None) -> dict[str, DataFrame]:
        """View → its rows. Those of ``observed`` are counted by its Observation (in a stream: by its name). Views
        that cannot be made are left out, and named in ``faults``.
        """
        found: dict[str, DataFrame] = {}
        broken: set[str] = set()

        def enter(name: str, frame: DataFrame) -> None:
            if observed and name in observed:
                frame = frame.observe(observed[name], f.count(f.lit(1)).alias(COUNT))
            frame.createOrReplaceTempView(name)
            found[name] = frame

        frame = None if (SOURCE,) in self._pipeline.broken else self._source()
        if frame is None:
            broken.add(SOURCE)
        else:
            enter(SOURCE, frame)
        for index, step in enumerate(self._pipeline.steps):
            # A view that is not there would be named once more in each step that reads it.
            is_whole = ("step", index) not in self._pipeline.broken
            is_whole = is_whole and not broken.intersection(self._pipeline.reads(step))
            frame = self._step(index, step, is_whole=is_whole)
            if frame is None:
                broken.add(step.name)
            else:
                enter(step.name, frame)
        return found

    def outputs(self, views: Mapping[str, DataFrame]) -> list[OutputPlan]:
        """The outputs whose step and expressions are right; the others are named in ``faults``."""
        plans = []
        for index, output in enumerate(self._pipeline.outputs):
            frame = views.get(output.view)
            if frame is None:
                self._parse(index, output)
                continue
            plan = self._output(index, output, frame)
            is_whole = ("output", index) not in self._pipeline.broken
            is_whole = is_whole and len(plan.types) == len(output.expressions)
            if self._is_supported(index, frame) and is_whole:
                plans.append(plan)
        return plans

    def output(self, index: int, observed: Mapping[str, Any] | None = None) -> OutputPlan:
        """One output, of views that are counted. Raises PipelineFaults."""
        plans = self.outputs(self.views(observed))
        if self.faults:
            raise PipelineFaults(self.faults)
        return next(plan for plan in plans if plan.index == index)

    def register(self) -> None:
        """Register the schemas of the outputs that the registry has not yet. Raises PipelineFaults."""
        self._formats.register()

    # --- parts --------------------------------------------------------------------------------------

    def _source(self) -> DataFrame | None:
        """Made once: its files are listed once, so all outputs read the same ones."""
        if self._source_frame is None:
            self._source_frame = self._read()
        return self._source_frame

    def _read(self) -> DataFrame | None:
        source = self._pipeline.source
        try:
            reader: Any = self._spark.readStream if self._is_stream else self._spark.read
            if source.table is not None:
                return reader.table(source.table)  # type: ignore[no-any-return]
            reader = reader.format(source.format).options(**source.options)
            if source.schema is not None:
                reader = reader.schema(source.schema)
            return reader.load(source.path) if source.path is not None else reader.load()  # type: ignore[no-any-return]
        except Exception as error:
            key = next((name for name in ("path", "table", "format") if getattr(source, name)), "format")
            what = f"the source cannot be read: {sentence(error)}"
            todo = KAFKA_TODO if KAFKA_MISSING in what else "correct [source]"
            self.faults.append(self._pipeline.fault((SOURCE, key), what, todo))
            return None

    def _step(self, index: int, step: SqlStep, *, is_whole: bool) -> DataFrame | None:
        """Of one that is not whole, or reads one that is not, only the syntax can be checked."""
        path: Path = ("step", index, "sql")
        try:
            # sql() would carry out a command at once.
            if step.sql and not VARIABLE.search(step.sql):  # the file's own fault says why
                self._parser.parseQuery(step.sql)
            return self._spark.sql(step.sql, args=dict(step.params)) if is_whole else None
        except Exception as error:
            self._sql_fault(path, error, f"step {step.name}")
            return None

    @property
    def _parser(self) -> Any:
        return self._spark._jsparkSession.sessionState().sqlParser()

    def _parse(self, index: int, output: Output) -> None:
        """Without its rows only the syntax of an output's expressions can be checked."""
        for name, text in output.expressions.items():
            try:
                self._parser.parseExpression(text)
            except Exception as error:
                key = _key_of(name)
                self._sql_fault(("output", index, key), error, key)

    def _output(self, index: int, output: Output, frame: DataFrame) -> OutputPlan:
        """Has the types of those parts that are right."""
        plan = OutputPlan(index, output, frame, {}, has_file=self._knows_files(index, frame))
        is_whole = not self._pipeline.broken & {("output", index), ("registry",)}
        for name, text in output.expressions.items():
            key = _key_of(name)
            path: Path = ("output", index, key)
            try:
                # With all columns, so that an aggregate, which would make one row of all, is an error.
                kind = frame.select("*", f.expr(text).alias("result")).schema.fields[-1].dataType
            except Exception as error:
                self._sql_fault(path, error, key)
                continue
            if name in output.formats:
                if not is_whole:
                    continue
                try:
                    plan.encodings[name] = encoding = self._formats.encoding(index, name, kind)
                except PipelineFaults as found:
                    self.faults += [each for each in found.faults if each not in self.faults]
                    continue
                kind = encoding.type
            fault = type_fault(name, kind)
            if fault is None:
                plan.types[name] = kind
            else:
                self.faults.append(self._pipeline.fault(path, f"{key}: {fault}", "correct the expression"))
        return plan

    def _knows_files(self, index: int, frame: DataFrame) -> bool:
        """Asked once, of the frame that is not counted: an error would complete the Observations of the other."""
        if index not in self._with_files:
            try:
                frame.select(f.input_file_name())
                self._with_files[index] = True
            except AnalysisException:
                self._with_files[index] = False
        return self._with_files[index]

    def _is_supported(self, index: int, frame: DataFrame) -> bool:
        """A stream cannot do all that a batch can, such as sort; else it would say so when it starts."""
        if not frame.isStreaming:
            return True
        jvm: Any = self._spark._jvm
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        try:
            checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), append)
        except Exception as error:
            view = self._pipeline.outputs[index].view
            what = f"step {view} is not possible in a stream: {sentence(error)}"
            self.faults.append(
                self._pipeline.fault(("output", index), what, "change the SQL, or run it as a batch")
            )
            return False
        return True

    def _sql_fault(self, path: Path, error: Exception, who: str) -> None:
        text = sentence(error)
        line = self._pipeline.positions.line(path)
        found = _POSITION.search(text)
        if found is not None:
            line = self._pipeline.positions.content_line(path) + int(found[1] or found[3]) - 1
        self.faults.append(Fault(self._pipeline.file, line, f"{who}: {text}", "correct the SQL"))


def _key_of(part: str) -> str:
    """The key of the file with the expression for a part of the record."""
    return "topic_expr" if part == "topic" else part


def sentence(error: BaseException) -> str:
    """What Spark says, in one line, without its plan and its stack."""
    text = str(error).partition(";\n")[0]  # a plan comes next
    condition = _CONDITION.search(text)
    if condition is not None:
        text = condition[0]
    ours = [line for line in str(error).splitlines() if "kafka_sidecar:" in line]
    if ours:
        text = ours[-1][ours[-1].index("kafka_sidecar:") :]
    return " ".join(_SQLSTATE.sub("", text).split()).rstrip("; ,.")
