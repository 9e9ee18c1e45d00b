"""The rows of an output as records: each part is evaluated once, and a row that cannot be a record gets a reason.

Made on the driver; Spark evaluates the rows in its executors.

An expression that fails is caught by Spark's TryEval, which no SQL function offers: so a key that fails is not taken
for a key that is null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, MapType

from client_stub.records.packer import KAFKA_RECORD_OVERHEAD_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from client_stub.pipeline.plan import OutputPlan

REASON, FILE, ROW_ID, ROW = "reason", "file", "row_id", "row"
_PARTS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")
_TOPIC: Final = r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$"
_LENGTHS: Final = 15
"""The most bytes of the lengths of key and value and of the number of headers, as varints."""
_TASK_SHIFT: Final = 33
"""monotonically_increasing_id() has the task above these bits, and below them the row of that task."""
TOPICS_MAX: Final = 10_000
"""Beyond so many topics of one output their partitions are left to the sink, where a wrong one ends the run."""
_SHARE_OF_BAD_ROW: Final = 4
"""A bad row's JSON is cut at this share of the largest record: its row was perhaps too large."""


def plain(plan: OutputPlan, name: str) -> str:
    """The column of a part before it is encoded."""
    return f"plain_{name}" if name in plan.encodings else name


class Limits(NamedTuple):
    """What Kafka and the daemon take; None where that is not known."""

    size: int | None = None
    """Bytes of the largest record."""
    partitions: int | None = None
    """Of the output's one topic."""
    by_topic: Mapping[str, int] = {}
    """Partitions of the topics of an output that has several."""


def tried_parts(plan: OutputPlan, *, keep_row: bool = False, keep_plain: bool = False) -> DataFrame:
    """The parts of each record as ``_tried`` has them, its source file and its number; with ``keep_row`` the row
    itself, too, with ``keep_plain`` the parts before they are encoded.
    """
    parts = [_tried(plan, plan.part(name)).alias(name) for name in plan.output.expressions]
    if keep_plain:
        texts = plan.output.expressions
        parts += [_tried(plan, f.expr(texts[name])).alias(plain(plan, name)) for name in plan.encodings]
    more = [f.struct("*").alias(ROW)] if keep_row else []
    # The number is not deterministic, so Spark does not move a filter of the reasons below this projection,
    # where it would evaluate each expression twice.
    file = f.input_file_name() if plan.has_file else f.lit("")
    return plan.frame.select(*parts, file.alias(FILE), f.monotonically_increasing_id().alias(ROW_ID), *more)


def with_reasons(plan: OutputPlan, parts: DataFrame, limits: Limits) -> DataFrame:
    """The rows of ``tried_parts``, each with the reason why it is bad, null for a good one."""
    return parts.withColumn(REASON, f.coalesce(*_reasons(plan, limits), f.lit(None).cast("string")))


def greatest_partitions(parts: DataFrame) -> dict[str, int]:
    """Topic → the greatest partition that a row of ``tried_parts`` has for it. Empty for more than TOPICS_MAX topics.
    A job of its own, which evaluates these two alone.
    """
    topic, partition = f.col("topic.v").alias("topic"), f.col("partition.v").alias("partition")
    found = (
        parts.select(topic, partition).dropna().groupBy("topic").agg(f.max("partition").alias("partition"))
    )
    rows = found.limit(TOPICS_MAX + 1).collect()
    return {} if len(rows) > TOPICS_MAX else {row["topic"]: row["partition"] for row in rows}


def good_records(plan: OutputPlan, rows: DataFrame) -> DataFrame:
    """The columns of the sink. A bad row is left out where the output has a place for bad rows, and else ends the
    run with its number and its file.
    """
    names = [name for name in _PARTS if name in plan.types]
    columns = {name: f.col(f"{name}.v") for name in names}
    if plan.output.keeps_bad_rows:
        rows = rows.where(f.col(REASON).isNull())
    else:
        columns["value"] = f.when(f.col(REASON).isNull(), columns["value"]).otherwise(
            f.raise_error(_complaint(plan))
        )
    return rows.select(*(columns[name].alias(name) for name in names))


def bad_records(plan: OutputPlan, rows: DataFrame, limits: Limits) -> DataFrame:
    """The bad rows: for a topic as records of JSON with the reason in headers, for a folder as they are."""
    bad = rows.where(f.col(REASON).isNotNull())
    if plan.output.bad_topic is None:
        return bad.select(REASON, FILE, ROW)
    text = f.to_json(f.col(ROW))
    if limits.size is not None:
        text = f.substring(text, 1, limits.size // _SHARE_OF_BAD_ROW)
    headers = f.create_map(f.lit("reason"), f.col(REASON), f.lit("file"), f.col(FILE))
    return bad.select(text.alias("value"), headers.alias("headers"))


def _complaint(plan: OutputPlan) -> Column:
    number = f.col(ROW_ID).bitwiseAND((1 << _TASK_SHIFT) - 1)
    task = f.shiftright(f.col(ROW_ID), _TASK_SHIFT)
    where = f.when(f.col(FILE) != "", f.concat(f.lit(" (file "), f.col(FILE), f.lit(")"))).otherwise("")
    head = f"kafka_sidecar: output {plan.output.label}: row "
    return f.concat(
        f.lit(head), number, f.lit(" of task "), task, where, f.lit(" cannot be sent: "), f.col(REASON)
    )


def _tried(plan: OutputPlan, column: Column) -> Column:
    """A struct of one field ``v`` with the result, null where the expression fails."""
    jvm: Any = plan.frame.sparkSession._jvm
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    result: Any = f.struct(column.alias("v"))
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(expressions.expression(result._jc))
    return Column(expressions.column(tried))


def _reasons(plan: OutputPlan, limits: Limits) -> list[Column]:
    found = []

    def when(condition: Column, text: str | Column) -> None:
        found.append(f.when(condition, f.lit(text) if isinstance(text, str) else text))

    for name in plan.types:
        when(f.col(name).isNull(), f"{'topic_expr' if name == 'topic' else name} failed")
    result = {name: f.col(f"{name}.v") for name in plan.types}
    if "topic" in result:
        when(result["topic"].isNull(), "the topic is null")
        when(~result["topic"].rlike(_TOPIC), "that is no name of a topic")
    if not plan.output.takes_tombstones:
        when(result["value"].isNull(), "the value is null")
    if "partition" in result:
        last = _last_partition(result.get("topic"), limits)
        when(
            (result["partition"] < 0) | (result["partition"] > last),
            f.concat(
                f.lit("partition "),
                result["partition"].cast("string"),
                f.lit(" is not one of 0 to "),
                last.cast("string"),
                f.lit(" of topic "),
                f.lit(plan.output.topic) if plan.output.topic is not None else result["topic"],
            ),
        )
    if "timestamp" in result:
        is_number = isinstance(plan.types["timestamp"], LongType)
        epoch = f.lit(0) if is_number else f.timestamp_millis(f.lit(0))
        when(result["timestamp"] < epoch, "the timestamp is before 1970")
    size = _bytes(result["value"])
    if "key" in result:
        size = size + _bytes(result["key"])
    if "headers" in result:
        headers = result["headers"]
        if isinstance(plan.types["headers"], MapType):
            headers = f.map_entries(headers)
        when(f.exists(headers, lambda each: each["key"].isNull()), "a header or its key is null")
        size = size + f.coalesce(
            f.aggregate(
                headers,
                f.lit(0),
                lambda total, each: total + _bytes(each["key"]) + _bytes(each["value"]) + f.lit(10),
            ),
            f.lit(0),
        )
    if limits.size is not None:
        bound = size + f.lit(KAFKA_RECORD_OVERHEAD_BYTES + _LENGTHS)
        when(
            bound > limits.size,
            f.concat(f.lit("too large: "), bound, f.lit(f" bytes, {limits.size} may be sent")),
        )
    return found


def _last_partition(topic: Column | None, limits: Limits) -> Column:
    """By the few numbers of partitions that topics have: Spark looks a topic up in a set, but walks through a map."""
    most = f.lit((1 << 31) - 1 if limits.partitions is None else limits.partitions - 1)
    if topic is None or not limits.by_topic:
        return most
    topics = defaultdict(list)
    for name, partitions in limits.by_topic.items():
        topics[partitions].append(name)
    (first, of_first), *others = topics.items()
    found = f.when(topic.isin(of_first), first - 1)
    for partitions, names in others:
        found = found.when(topic.isin(names), partitions - 1)
    return found.otherwise(most)


def _bytes(column: Column) -> Column:
    return f.coalesce(f.octet_length(column), f.lit(0))
