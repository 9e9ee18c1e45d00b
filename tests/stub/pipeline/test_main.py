"""The command line of pipelines, as far as no Spark is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_stub.pipeline.main import ALONE, main, session_settings

SUBMITTED = {"PYSPARK_GATEWAY_PORT": "1"}


def test_the_settings_of_spark_submit_stay() -> None:
    """Its master above all: the program would run on the driver alone."""
    assert session_settings(None, {}, SUBMITTED) == {}
    assert session_settings(None, {"a": "b"}, SUBMITTED) == {"a": "b"}
    assert session_settings(None, {}, {}) == ALONE
    assert session_settings("local[2]", {}, {})["spark.master"] == "local[2]"
    assert session_settings(None, {"spark.master": "yarn"}, {})["spark.master"] == "yarn"


def test_new_writes_an_example_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "late.toml"
    assert main(["new", str(file)]) == 0
    assert f"pipeline check {file}" in capsys.readouterr().out
    assert main(["new", str(file)]) == 1
    assert capsys.readouterr().err == f"{file} cannot be written: File exists.\n"


def test_faults_are_lines_on_stderr_and_an_error_for_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "late.toml"
    file.write_text("[pipeline]\nname = 3\n")
    assert main(["check", str(file)]) == 1
    assert all(line.startswith(f"{file}:") for line in capsys.readouterr().err.splitlines())
    assert main(["run", str(file), "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "pipeline": "",
        "run_id": "",
        "seconds": 0.0,
        "rows_read": None,
        "steps": [],
        "outputs": [],
        "ok": False,
        "error": shown.err.strip(),
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["run"], "the following arguments are required: FILE"),
        (["run", "x.toml", "--set", "minutes"], "'minutes' must be NAME=VALUE."),
        (
            ["run", "x.toml", "--timeout", "0"],
            "argument --timeout: '0' must be a number of seconds, above 0 and below 1,000,000",
        ),
    ],
)
def test_wrong_usage(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
