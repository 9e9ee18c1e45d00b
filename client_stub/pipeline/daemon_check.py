"""What the daemon of the driver's host says before a run: whether it is there, its topics, and its largest record.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from client_stub.contract.run_dir import default_run_dir
from client_stub.errors import DaemonRefused, DaemonUnreachable, MetadataTimeout, SidecarError
from client_stub.io.daemon_address import control_path
from client_stub.io.topic_lookup import TopicLookup
from client_stub.pipeline.file import Fault, Pipeline
from client_stub.pipeline.records import Limits
from client_stub.pipeline.status import FAILED, TIMED_OUT, UNREACHABLE
from client_stub.producer import Producer
from client_stub.spark.autostart import DaemonNotStarted, check_settings, ensure_daemon
from client_stub.spark.executor_log import one_line
from client_stub.spark.options import Options, read_options
from client_stub.spark.topic_check import TOPIC_LOOK_MS
from client_stub.system.originals import monotonic

if TYPE_CHECKING:
    from client_stub.pipeline.positions import Path as KeyPath

LOOKED_UP_AT_ONCE: Final = 8
SIZE_WAIT_MS: Final = 30_000.0
MAX_REQUEST_SIZE: Final = 1 << 20
"""Kafka's default, of daemons that the tasks start on other hosts."""


class _Answer(NamedTuple):
    partitions: int
    error: SidecarError | None = None
    cluster_error: str = ""
    """Why no broker answers the daemon; empty while one does."""


@dataclass
class DaemonAnswers:
    """``status`` is how a run ends with these faults. Of a cluster's driver without a daemon nothing is known."""

    faults: list[Fault] = field(default_factory=list)
    status: int = FAILED
    partitions: dict[str, int] = field(default_factory=dict)
    """Topic → how many it has."""
    size_limit: int | None = None
    """Bytes of the largest record."""
    ask: Callable[[Iterable[str]], dict[str, _Answer]] = lambda _: {}
    """Looks up topics at the daemon, where there is one."""

    def partitions_of(self, asked: Mapping[str, int]) -> dict[str, int]:
        """Topic → how many partitions it has, of those topics of ``asked`` that are in Kafka. Those with a greater
        partition in ``asked`` than is known are looked up: a topic may have got more.
        """
        answers = self.ask(
            [name for name, greatest in asked.items() if greatest >= self.partitions.get(name, 0)]
        )
        self.partitions |= {name: each.partitions for name, each in answers.items() if each.error is None}
        return {name: self.partitions[name] for name in asked if name in self.partitions}

    def limits(self, topic: str | None) -> Limits:
        return Limits(self.size_limit, self.partitions.get(topic) if topic else None)


def missing_daemon(pipeline: Pipeline) -> Fault | None:
    """Of a run on this host: told without waiting for Spark to start."""
    if pipeline.daemon is not None:
        return None
    try:
        run_dir = pipeline.run_dir or default_run_dir()
    except ValueError as error:  # of this user; those of a cluster's executors may have theirs
        return _no_daemon(pipeline, str(error).rstrip("."))
    if "://" in run_dir or Path(control_path(run_dir)).exists():
        return None
    return _no_daemon(pipeline, f"no daemon runs on {run_dir}")


def ask_daemon(pipeline: Pipeline, *, is_local: bool) -> DaemonAnswers:
    """``is_local``: the tasks run on this host, so it must have a daemon, or start one."""
    found = DaemonAnswers()
    missing = missing_daemon(pipeline)
    if missing is not None:
        if is_local:
            found.faults, found.status = [missing], UNREACHABLE
        return found
    try:
        options = read_options({"topic": "any", **pipeline.sink_options()})
        run_dir = _own_daemon(options, is_local=is_local) if options.settings else options.run_dir_here()
    except ValueError as error:
        text = str(error).removeprefix("kafka_sidecar: ").rstrip(".")
        found.faults.append(pipeline.fault(("kafka",), text, "correct [kafka]"))
        return found
    except DaemonNotStarted as error:
        found.status = UNREACHABLE
        found.faults.append(
            pipeline.fault(("sidecar", "autostart"), str(error).rstrip("."), "correct [kafka]")
        )
        return found
    if not run_dir:
        found.size_limit = int(dict(options.settings or ()).get("max.request.size", MAX_REQUEST_SIZE))
        return found
    _look_up(pipeline, run_dir, options, found, is_local=is_local)
    return found


def _own_daemon(options: Options, *, is_local: bool) -> str:
    """The run directory of the daemon that is started for these settings; "" where the tasks are on other hosts."""
    assert options.settings is not None
    check_settings(options.settings)
    return ensure_daemon(dict(options.settings)) if is_local else ""


def _look_up(
    pipeline: Pipeline, run_dir: str, options: Options, found: DaemonAnswers, *, is_local: bool
) -> None:
    topics: dict[str, KeyPath] = {}
    for index, output in enumerate(pipeline.outputs):
        if output.topic:
            topics.setdefault(output.topic, ("output", index, "topic"))
        if output.bad_topic:
            topics.setdefault(output.bad_topic, ("output", index, "bad_rows"))

    def look_up(topic: str) -> _Answer:
        lookup = TopicLookup(
            control_path(run_dir), topic, TOPIC_LOOK_MS, monotonic() * 1e3, asked=options.asked
        )
        try:
            return _Answer(len(lookup.wait()))
        except SidecarError as error:
            return _Answer(0, error, lookup.cluster_error)

    def ask(names: Iterable[str]) -> dict[str, _Answer]:
        names = list(names)
        with ThreadPoolExecutor(LOOKED_UP_AT_ONCE) as threads:
            return dict(zip(names, threads.map(look_up, names), strict=True))

    found.ask = ask
    for topic, answer in ask(topics).items():
        if answer.error is None:
            found.partitions[topic] = answer.partitions
        elif isinstance(answer.error, DaemonUnreachable):
            if is_local:
                found.faults, found.status = [_no_daemon(pipeline, _text(answer.error))], UNREACHABLE
            return
        else:
            found.faults.append(_topic_fault(pipeline, topics[topic], topic, answer))
            if isinstance(answer.error, MetadataTimeout) and answer.cluster_error:
                found.status = TIMED_OUT
    if found.partitions:
        # A daemon that is busy for so long is no reason to send nothing: it names a row that is too large by itself.
        with (
            suppress(SidecarError),
            Producer(run_dir, client_name="pipeline", max_block_ms=SIZE_WAIT_MS) as producer,
        ):
            found.size_limit = producer.size_limit(next(iter(found.partitions)))


def _topic_fault(pipeline: Pipeline, path: KeyPath, topic: str, answer: _Answer) -> Fault:
    error = answer.error
    assert error is not None
    if isinstance(error, DaemonRefused) and error.name == "OTHER_CLUSTER":
        return pipeline.fault(
            ("kafka",), _text(error), "correct [kafka], or name the run_dir of another daemon"
        )
    if isinstance(error, MetadataTimeout) and answer.cluster_error:
        away = " ".join(answer.cluster_error.split()).rstrip(".")
        return pipeline.fault(path, f"topic {topic} cannot be looked up: {away}", "bring Kafka back")
    if isinstance(error, MetadataTimeout):
        looked = f"looked for {TOPIC_LOOK_MS / 1e3:g} s"
        return pipeline.fault(
            path, f"topic {topic} is not in Kafka ({looked})", "create it, or correct its name"
        )
    return pipeline.fault(
        path, f"topic {topic}: {error.name}: {_text(error)}", "correct its name or the rights"
    )


def _no_daemon(pipeline: Pipeline, what: str) -> Fault:
    return pipeline.fault(
        ("sidecar",), what, "start one with 'kafka-sidecar run', or name its run_dir in [sidecar]"
    )


def _text(error: SidecarError) -> str:
    return one_line(error).rstrip(".")
