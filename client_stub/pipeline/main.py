"""The command line of pipelines, of ``python -m client_stub.pipeline``, ``kafka-sidecar pipeline`` and spark-submit."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

if __name__ == "__main__":  # by spark-submit: the folder of this file must not hide other modules
    sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

from client_stub.pipeline.example import EXAMPLE
from client_stub.pipeline.file import Pipeline, PipelineFaults, read_pipeline, read_with_faults
from client_stub.pipeline.packages import with_packages
from client_stub.pipeline.report import Report
from client_stub.pipeline.status import FAILED, INTERRUPTED, OK, UNREACHABLE, USAGE
from client_stub.spark.options import NO_DAEMON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from client_stub.pipeline.progress import RunProgress
    from client_stub.pipeline.session import SparkLog

ALONE: Final = {
    "spark.master": "local[*]",
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
}
"""Of a run without spark-submit."""
TIMEOUT_MAX_S: Final = 1e6
"""Some eleven days; a timer takes no more than a few years."""


class _Outcome(NamedTuple):
    """What a command prints when its progress has left the terminal."""

    status: int
    out: str = ""
    err: str = ""
    is_of_spark: bool = False
    """Whether Spark's log may say more."""


def main(
    words: Sequence[str] | None = None,
    name: str = "python -m client_stub.pipeline",
    run_dir: str | None = None,
) -> int:
    """Carry out a command. ``run_dir`` takes precedence over that of the file, as --run-dir does.

    Returns its exit status: 0 ok, 1 failed, 69 no daemon, 75 timed out, 130 Ctrl-C; ends with 2 for wrong usage.
    """
    arguments = _parser(name).parse_args(words)
    if arguments.command == "new":
        outcome = _new(arguments.file)
    else:
        arguments.run_dir = arguments.run_dir or run_dir
        arguments.settings = dict(_setting(each) for each in arguments.set)
        conf = dict(_setting(each) for each in arguments.conf)
        arguments.spark_settings = session_settings(arguments.master, conf, os.environ)
        outcome = _with_pipeline(arguments)
    if outcome.out:
        print(outcome.out, flush=True)
    if outcome.err:
        print(outcome.err, file=sys.stderr, flush=True)
    return outcome.status


def _with_pipeline(arguments: argparse.Namespace) -> _Outcome:
    try:
        read = read_pipeline if arguments.command == "run" else read_with_faults
        pipeline = read(arguments.file, arguments.settings, os.environ)
        if pipeline.faults and not pipeline.steps and not pipeline.outputs:
            raise PipelineFaults(pipeline.faults)  # there is no more to check
        if arguments.run_dir:
            pipeline.run_dir, pipeline.daemon = arguments.run_dir, None
        import pyspark  # noqa: F401
    except PipelineFaults as faults:
        return _failed(arguments, "", str(faults), faults.status)
    except ImportError:
        sentence = (
            "Pipelines need the [spark] extra (pyspark is missing): pip install 'kafka-sidecar[spark]'."
        )
        return _failed(arguments, pipeline.name, _after_faults(pipeline, sentence), FAILED)
    from client_stub.pipeline.daemon_check import missing_daemon
    from client_stub.pipeline.progress import RunProgress
    from client_stub.pipeline.session import SparkLog

    is_local = arguments.spark_settings.get("spark.master", "").startswith("local")
    if arguments.command == "run" and is_local and (missing := missing_daemon(pipeline)) is not None:
        return _failed(arguments, pipeline.name, str(missing), UNREACHABLE)
    progress = RunProgress()
    try:
        log = SparkLog(arguments.spark_log)
    except OSError as error:
        _usage(f"--spark-log {arguments.spark_log} cannot be written: {error.strerror}.")
    with log:
        # spark-submit joins a program's stderr with its stdout, on which a script reads one object.
        is_joined = not log.is_used and arguments.command == "run" and arguments.json
        with progress.shown(quiet=arguments.quiet or is_joined):
            outcome = _with_spark(arguments, pipeline, progress, log)
        if outcome.is_of_spark and log.is_used:
            log.is_kept = True
            outcome = outcome._replace(err=f"{outcome.err}\nSpark's log: {log.path}".lstrip())
    return outcome


def _with_spark(
    arguments: argparse.Namespace, pipeline: Pipeline, progress: RunProgress, log: SparkLog
) -> _Outcome:
    from client_stub.pipeline.session import SparkNotStarted, started_session

    settings = with_packages(pipeline, arguments.spark_settings, os.environ)
    try:
        spark = started_session(pipeline.name or "pipeline", settings, log)
    except SparkNotStarted as error:
        return _failed(
            arguments, pipeline.name, _after_faults(pipeline, str(error)), FAILED, is_of_spark=True
        )
    except KeyboardInterrupt:
        return _failed(arguments, pipeline.name, "Stopped. Nothing was sent.", INTERRUPTED)
    try:
        if arguments.command == "check":
            return _check(spark, pipeline, progress)
        return _run(spark, pipeline, progress, arguments)
    except PipelineFaults as faults:
        return _failed(arguments, pipeline.name, str(faults), faults.status)
    except KeyboardInterrupt:
        return _failed(arguments, pipeline.name, "Stopped. Nothing was sent.", INTERRUPTED)
    finally:
        progress.phase = "Spark ends"
        spark.stop()


def _parser(name: str) -> argparse.ArgumentParser:
    examples = "\n".join(
        f"{name} {words}"
        for words in ("new late.toml", "check late.toml", "run late.toml --set minutes=30", "run --help")
    )
    parser = argparse.ArgumentParser(
        prog=name,
        description=f"Spark reads, SQL selects, the sidecar sends, and a report counts.\n\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the pipeline and report what is in Kafka")
    check = commands.add_parser("check", help="find all faults and show three rows; sends nothing")
    for each in (run, check):
        each.add_argument("file", type=Path, metavar="FILE", help="the pipeline's TOML file")
        each.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the steps"
        )
        each.add_argument("--run-dir", help="a daemon's run directory, in place of [sidecar]")
        each.add_argument("--master", help="Spark's master [default: spark-submit's, else local[*]]")
        each.add_argument(
            "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark"
        )
        each.add_argument(
            "--spark-log",
            type=Path,
            metavar="FILE",
            help="where Spark's log goes [default: a temporary file, which is kept after a failure]",
        )
        each.add_argument("--quiet", action="store_true", help="show no progress")
    run.add_argument("--json", action="store_true", help="print the report as one JSON object")
    run.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report as a page with its pictures, too"
    )
    run.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="end the run then, as Ctrl-C does; exit 75"
    )
    new = commands.add_parser("new", help="write a commented example")
    new.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        _usage(f"{text!r} must be NAME=VALUE.")
    return name, value


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < TIMEOUT_MAX_S:
            return seconds
    raise argparse.ArgumentTypeError(
        f"{text!r} must be a number of seconds, above 0 and below {TIMEOUT_MAX_S:,.0f}"
    )


def _usage(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    raise SystemExit(USAGE)


def _new(file: Path) -> _Outcome:
    try:
        with file.open("x") as target:
            target.write(EXAMPLE)
    except OSError as error:
        return _Outcome(FAILED, err=f"{file} cannot be written: {error.strerror}.")
    return _Outcome(OK, f"{file} is written; next: kafka-sidecar pipeline check {file}")


def session_settings(
    master: str | None, settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Spark's settings of a run. Those of spark-submit stay, as it has started the JVM that this program talks to."""
    found = {} if "PYSPARK_GATEWAY_PORT" in environment else dict(ALONE)
    if master is not None:
        found["spark.master"] = master
    return {**found, **settings}


def _check(spark: SparkSession, pipeline: Pipeline, progress: RunProgress) -> _Outcome:
    from client_stub.pipeline.check import check

    progress.phase = "Spark makes the plan"
    try:
        return _Outcome(OK, check(spark, pipeline))
    except PipelineFaults as faults:
        return _Outcome(FAILED, err=str(faults))


def _run(
    spark: SparkSession, pipeline: Pipeline, progress: RunProgress, arguments: argparse.Namespace
) -> _Outcome:
    from client_stub.pipeline.page import page
    from client_stub.pipeline.plan import sentence
    from client_stub.pipeline.run import Interrupted, Run

    run = Run(spark, pipeline, progress, arguments.timeout)
    report, status, complaint = run.report, OK, ""
    try:
        run.run()
    except PipelineFaults:
        raise
    except Interrupted:
        pass  # the report says so
    except Exception as error:
        report.error = f"{sentence(error)}. {run.in_kafka()}"
        status = UNREACHABLE if NO_DAEMON in report.error else FAILED
    if report.ending is not None:
        status = report.ending.status
    if status == OK and not report.ok:
        status = FAILED
    if arguments.html is not None:
        try:
            arguments.html.write_text(page(report))
        except OSError as error:
            complaint = f"The page cannot be written: {error.strerror}."
            status = status or FAILED
    if not arguments.json:
        return _Outcome(status, report.as_text(), complaint, status == FAILED)
    err = "\n".join(filter(None, [complaint, report.verdict() if status != OK else ""]))
    return _Outcome(status, json.dumps(report.as_json(), indent=1), err, status == FAILED)


def _after_faults(pipeline: Pipeline, sentence: str) -> str:
    """What is wrong in the file, which a check knows before Spark has started, and the sentence."""
    return "\n".join([*map(str, pipeline.faults), sentence])


def _failed(
    arguments: argparse.Namespace, name: str, sentence: str, status: int, *, is_of_spark: bool = False
) -> _Outcome:
    """Of a run that has sent nothing."""
    if arguments.command != "run" or not arguments.json:
        return _Outcome(status, err=sentence, is_of_spark=is_of_spark)
    report = Report(name, "", "", error=sentence)
    return _Outcome(status, json.dumps(report.as_json(), indent=1), sentence, is_of_spark)


if __name__ == "__main__":
    raise SystemExit(main())
