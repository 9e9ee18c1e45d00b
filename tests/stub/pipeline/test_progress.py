"""What a run shows meanwhile, from the files that its tasks leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_stub.pipeline import progress as module
from client_stub.pipeline.progress import Counts, RunProgress
from client_stub.pipeline.report import Sample

pytest.importorskip("pyspark")  # not installed for make quick

from client_stub.spark.write_report import TaskProgress, TaskWritten


def leave(folder: Path, task: int, rows: int, acknowledged: int) -> None:
    counts = {"rows": rows, "acknowledged": acknowledged, "bytes": rows * 100}
    (folder / f"task-{task}-0-1.json").write_text(json.dumps(counts))


def test_counts_are_the_sums_of_all_tasks_of_all_writes(tmp_path: Path) -> None:
    found = RunProgress(lambda: None)
    leave(tmp_path, 0, 10, 5)
    (tmp_path / "task-9-0-1.json").write_text("{")
    with found.writing(tmp_path):
        leave(tmp_path, 1, 20, 20)
        assert found.counts() == Counts(30, 25, 3_000)
        leave(tmp_path, 0, 10, 10)
    assert found.counts() == Counts(30, 30, 3_000)
    with found.writing(tmp_path):
        assert found.counts() == Counts(60, 60, 6_000)


def test_tasks_of_other_hosts_are_counted_when_their_write_is_over(tmp_path: Path) -> None:
    found = RunProgress(lambda: None)
    before = found.counts()
    with found.writing(tmp_path):
        pass
    found.committed(40, before)
    assert found.counts() == Counts(40, 40, 0)


@pytest.mark.parametrize(
    ("share", "with_bar", "text"),
    [
        (None, True, "30 rows (0 MB) handed over, 30 in Kafka, 3 rows/s"),
        (0.5, True, "[============            ]  50%, 30 rows"),
        (0.5, False, "50% of the tasks are over"),
    ],
)
def test_the_line_has_rate_and_share(tmp_path: Path, share: float | None, with_bar: bool, text: str) -> None:
    found = RunProgress(lambda: share)
    found.samples = [Sample(0.0, 0), Sample(10.0, 30)]
    leave(tmp_path, 0, 30, 30)
    with found.writing(tmp_path):
        shown = found.text(with_bar=with_bar)
    assert text in shown
    assert (" s left" in shown) == (share is not None)


def test_elsewhere_a_line_is_printed_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.001)
    monkeypatch.setattr(module, "LINE_S", 0.01)
    found = RunProgress(lambda: None)
    with found.shown(quiet=False):
        while not capsys.readouterr().err:
            pass
    with found.shown(quiet=True):
        pass
    assert capsys.readouterr().out == ""
    assert found.samples[-1].seconds > found.samples[0].seconds


def test_a_task_leaves_its_counts_where_the_folder_is(tmp_path: Path) -> None:
    written = TaskWritten(7, task=3, attempt=1)
    for folder in (str(tmp_path), str(tmp_path / "of another host"), ""):
        left = TaskProgress(folder, written)
        left.handed_over(700)
        left.acknowledged(5)
        left.close()
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("task-3-1-")
    assert json.loads(path.read_text()) == {"rows": 7, "acknowledged": 5, "bytes": 700}
