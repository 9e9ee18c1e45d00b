"""The command line of pipelines, of ``python -m client_stub.pipeline``, ``kafka-sidecar pipeline`` and spark-submit."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if __name__ == "__main__":  # by spark-submit: the folder of this file must not hide other modules
    sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

from client_stub.pipeline.example import EXAMPLE
from client_stub.pipeline.file import Pipeline, PipelineFaults, read_pipeline
from client_stub.pipeline.packages import with_packages
from client_stub.spark.options import NO_DAEMON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OK, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 69, 130
ALONE: Final = {
    "spark.master": "local[*]",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
"""Of a run without spark-submit."""


def main(
    words: Sequence[str] | None = None,
    name: str = "python -m client_stub.pipeline",
    run_dir: str | None = None,
) -> int:
    """Carry out a command. ``run_dir`` takes precedence over that of the file, as --run-dir does.

    Returns its exit status: 0 ok, 1 failed, 69 no daemon, 130 Ctrl-C; ends with 2 for wrong usage.
    """
    arguments = _parser(name).parse_args(words)
    if arguments.command == "new":
        return _new(arguments.file)
    settings = dict(_setting(each) for each in arguments.set)
    conf = dict(_setting(each) for each in arguments.conf)
    as_json = arguments.command == "run" and arguments.json
    try:
        pipeline = read_pipeline(arguments.file, settings, os.environ)
        if arguments.run_dir or run_dir:
            pipeline.run_dir, pipeline.daemon = arguments.run_dir or run_dir, None
    except PipelineFaults as faults:
        return _failed(str(faults), FAILED, as_json=as_json)
    try:
        from pyspark.errors import PySparkRuntimeError
    except ImportError:
        return _failed(
            "Pipelines need the [spark] extra (pyspark is missing): pip install 'kafka-sidecar[spark]'.",
            FAILED,
            as_json=as_json,
        )
    conf = with_packages(pipeline, session_settings(arguments.master, conf, os.environ), os.environ)
    try:
        spark = _session(pipeline, conf)
    except KeyboardInterrupt:
        return _failed("Stopped: nothing was sent.", INTERRUPTED, as_json=as_json)
    except PySparkRuntimeError:
        return _failed(f"Spark did not start: {_why_not(conf)}", FAILED, as_json=as_json)
    try:
        if arguments.command == "check":
            return _check(spark, pipeline)
        return _run(spark, pipeline, as_json=as_json, html=arguments.html, quiet=arguments.quiet)
    finally:
        spark.stop()


def _why_not(settings: Mapping[str, str]) -> str:
    packages = settings.get("spark.jars.packages")
    if packages is None:
        return "its lines above say why."
    return f"its lines above say why. If it could not fetch {packages}, name their jars by --conf spark.jars=FILE,FILE."


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
    run.add_argument("--json", action="store_true", help="print the report as one JSON object")
    run.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report as a page with its pictures, too"
    )
    run.add_argument("--quiet", action="store_true", help="show no progress")
    new = commands.add_parser("new", help="write a commented example")
    new.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        _usage(f"{text!r} must be NAME=VALUE.")
    return name, value


def _usage(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    raise SystemExit(USAGE)


def _new(file: Path) -> int:
    try:
        with file.open("x") as target:
            target.write(EXAMPLE)
    except OSError as error:
        return _failed(f"{file} cannot be written: {error.strerror}.", FAILED)
    print(f"{file} is written; next: kafka-sidecar pipeline check {file}")
    return OK


def session_settings(
    master: str | None, settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Spark's settings of a run. Those of spark-submit stay, as it has started the JVM that this program talks to."""
    found = {} if "PYSPARK_GATEWAY_PORT" in environment else dict(ALONE)
    if master is not None:
        found["spark.master"] = master
    return {**found, **settings}


def _session(pipeline: Pipeline, settings: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark would log each wrong statement with its stack, and the fault says all of it.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(pipeline.name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _check(spark: SparkSession, pipeline: Pipeline) -> int:
    from client_stub.pipeline.check import check

    try:
        print(check(spark, pipeline))
    except PipelineFaults as faults:
        return _failed(str(faults), FAILED)
    except KeyboardInterrupt:
        return _failed("Stopped: nothing was sent.", INTERRUPTED)
    return OK


def _run(spark: SparkSession, pipeline: Pipeline, *, as_json: bool, html: Path | None, quiet: bool) -> int:
    from client_stub.pipeline.page import page
    from client_stub.pipeline.plan import sentence
    from client_stub.pipeline.run import Interrupted, Run

    run = Run(spark, pipeline, quiet=quiet)
    report, status = run.report, OK
    try:
        run.run()
    except PipelineFaults as faults:
        return _failed(str(faults), FAILED, as_json=as_json)
    except Interrupted as stopped:
        report.error, status = str(stopped), INTERRUPTED
    except Exception as error:
        report.error = f"{sentence(error)}. {run.in_kafka()}"
        status = UNREACHABLE if NO_DAEMON in report.error else FAILED
    if status == OK and not report.ok:
        status = FAILED
    if html is not None:
        try:
            html.write_text(page(report))
        except OSError as error:
            print(f"The page cannot be written: {error.strerror}.", file=sys.stderr)
            status = status or FAILED
    print(json.dumps(report.as_json(), indent=1) if as_json else report.as_text(), flush=True)
    if as_json and status != OK:
        print(report.verdict(), file=sys.stderr)
    return status


def _failed(sentence: str, status: int, *, as_json: bool = False) -> int:
    print(sentence, file=sys.stderr)
    if as_json:
        answer: dict[str, Any] = {"ok": False, "error": sentence}
        print(json.dumps(answer, indent=1))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
