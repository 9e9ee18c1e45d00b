"""The report of a run: what it says to a script, and when its sums agree."""

from __future__ import annotations

import re

import pytest

from client_stub.pipeline.page import page
from client_stub.pipeline.report import Ending, OutputReport, PartitionCount, Report, Sample

COMMIT = {
    "rows": 100,
    "tasks": {"0": 60, "1": 40},
    "stage": 7,
    "topics": {"late": {"0": [5, 64, 60], "1": [-1, -1, 40]}},
}


@pytest.fixture
def report() -> Report:
    output = OutputReport("late", "step1", has_fixed_topic=True, counted=103, bad_rows=3, bad_rows_kept=3)
    output.add_commit(COMMIT, {0: 1, 1: 2})
    return Report(
        "flights <1>",
        "abc",
        "flights/*.csv",
        seconds=2.0,
        rows_read=500,
        steps={"step1": 103, "step2": None},
        reads={"step1": ("source",), "step2": ("source", "step1")},
        outputs=[output],
        samples=[Sample(0.0, 0), Sample(1.0, 60), Sample(2.0, 100)],
    )


def test_a_script_reads_one_object(report: Report) -> None:
    assert report.as_json() == {
        "pipeline": "flights <1>",
        "run_id": "abc",
        "seconds": 2.0,
        "rows_read": 500,
        "steps": [{"name": "step1", "rows": 103}, {"name": "step2", "rows": None}],
        "outputs": [
            {
                "topic": "late",
                "rows": 100,
                "bad_rows": 3,
                "partitions": {
                    "0": {"first": 5, "last": 64, "rows": 60},
                    "1": {"first": -1, "last": -1, "rows": 40},
                },
                "retried_tasks": 1,
                "duplicates": 40,
            }
        ],
        "ok": True,
        "error": None,
    }


def test_a_person_reads_a_table(report: Report) -> None:
    lines = report.as_text().splitlines()
    assert lines[0] == "Pipeline flights <1>, run abc"
    assert [line.split() for line in lines if "step1" in line] == [["step", "step1", "103", "397", "dropped"]]
    assert [line.split() for line in lines if "partition 0" in line] == [
        ["partition", "0", "60", "offsets", "5", "to", "64"]
    ]
    assert any(line.endswith(" 40  at most; tasks that were started again: 1") for line in lines)
    assert lines[-1] == "All sums agree."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"counted": 104}, "output late: 104 rows came to it, and 100 were sent and 3 bad"),
        ({"bad_rows_kept": 2}, "output late: 3 rows were bad, and 2 were kept"),
        ({"rows": 99}, "output late: 99 rows were sent, and 100 have an offset"),
    ],
)
def test_a_sum_that_does_not_agree_is_no_success(
    report: Report, change: dict[str, int], sentence: str
) -> None:
    for name, value in change.items():
        setattr(report.outputs[0], name, value)
    assert not report.ok
    assert sentence in report.as_json()["error"]
    assert sentence in report.as_text()


@pytest.mark.parametrize(
    ("ending", "verdict", "error"),
    [
        (Ending("Stopped by Ctrl-C.", True, 0), "Stopped by Ctrl-C. All sums agree.", None),
        (Ending("Out of time.", True, 75), "Out of time. All sums agree.", "Out of time."),
        (Ending("Stopped by Ctrl-C.", False, 130), "Stopped by Ctrl-C.", "Stopped by Ctrl-C."),
    ],
)
def test_a_run_that_was_ended_says_so_in_place_of_failed(
    report: Report, ending: Ending, verdict: str, error: str | None
) -> None:
    report.ending = ending
    assert (report.verdict(), report.as_json()["error"], report.ok) == (verdict, error, error is None)


def test_each_start_of_a_task_but_one_may_have_sent_its_rows_again(report: Report) -> None:
    output = report.outputs[0]
    output.add_commit(COMMIT, {0: 3, 1: 1})
    assert (output.retried_tasks, output.duplicates) == (2, 40 + 120)
    output.add_bad_commit({"rows": 4, "tasks": {"0": 4}}, {0: 2})
    assert (output.retried_tasks, output.duplicates, output.bad_rows_kept) == (3, 164, 7)


def test_fewer_offsets_than_rows_are_no_success(report: Report) -> None:
    report.outputs[0].partitions["late", 0] = PartitionCount(5, 63, 60)
    assert report.differences() == [
        "output late: 60 rows were sent to partition 0, and there are 59 offsets from 5 to 63: the topic was made "
        "anew, or lost records"
    ]


def test_a_source_that_changed_between_two_outputs_is_no_success(report: Report) -> None:
    report.note_rows("source", 500)
    assert report.ok
    report.note_rows("source", 501)
    assert report.differences() == ["source had another number of rows for each output"]


def test_partitions_of_several_topics_have_their_names() -> None:
    output = OutputReport("concat('late-', carrier)", "late", has_fixed_topic=False)
    topics = {"late-AA": {"0": [0, 59, 60]}, "late-BB": {"0": [0, 39, 40]}}
    output.add_commit({**COMMIT, "topics": topics}, {})
    found = Report("p", "r", "s", outputs=[output]).as_json()["outputs"][0]
    assert list(found["partitions"]) == ["late-AA-0", "late-BB-0"]


def test_the_page_stands_alone(report: Report) -> None:
    """No script, no style, picture or font from elsewhere; what the user named is escaped."""
    text = page(report)
    tags = re.findall(r"<(\w+)([^>]*)>", text)
    assert [tag for tag, _ in tags].count("svg") == 2
    assert not [tag for tag in tags if tag[0] == "script" or re.search(r"\b(src|href)\b", tag[1])]
    assert "flights &lt;1&gt;" in text
    assert "<1>" not in text
