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
    counts = Counts(rows, rows * 100, acknowledged, acknowledged * 100)
    (folder / f"task-{task}.json").write_text(json.dumps(counts._asdict()))


def writing(share: float | None = None) -> RunProgress:
    found = RunProgress()
    found.share = lambda: share
    found.writes()
    return found


def test_counts_are_the_sums_of_all_tasks_of_all_writes(tmp_path: Path) -> None:
    found = writing()
    leave(tmp_path, 0, 10, 5)
    (tmp_path / "task-9.json").write_text("{")
    with found.writing(tmp_path):
        leave(tmp_path, 1, 20, 20)
        assert found.counts() == Counts(30, 3_000, 25, 2_500)
        leave(tmp_path, 0, 10, 10)
    assert found.counts() == Counts(30, 3_000, 30, 3_000)
    with found.writing(tmp_path):
        assert found.counts() == Counts(60, 6_000, 60, 6_000)


def test_tasks_of_other_hosts_are_counted_when_their_write_is_over(tmp_path: Path) -> None:
    found = writing()
    before = found.counts()
    with found.writing(tmp_path):
        pass
    found.committed(40, before)
    assert found.counts() == Counts(40, 0, 40, 0)


LONG = "1,234,567 rows (123 MB) handed over, 1,000,000 (100 MB) acknowledged, 100,000 rows/s"
MIDDLE = "1.23 M rows (123 MB) handed over, 1 M (100 MB) acknowledged, 100 k/s"
SHORT = "1.23 M rows (123 MB) out, 1 M acked, 100 k/s"


@pytest.mark.parametrize(
    ("share", "width", "bar", "text"),
    [
        (0.5, 160, f"[{'=' * 20}{' ' * 20}]  ", f"50% {LONG}, 0 s left"),
        (0.25, 79, "[====             ]  ", f"25% {SHORT}, 0 s left"),
        (1.0, 199, f"[{'=' * 40}]  ", f"100% {LONG}"),
        (None, 90, "", LONG),
        (None, 79, "", MIDDLE),
        (None, 50, "", SHORT),
        (None, 20, "", SHORT[:20]),
        (0.5, 20, "", f"50% {SHORT}"[:20]),
    ],
)
def test_the_bar_fits_the_terminal(
    tmp_path: Path, share: float | None, width: int, bar: str, text: str
) -> None:
    found = writing(share)
    found.samples = [Sample(0.0, 0), Sample(10.0, 1_000_000)]
    leave(tmp_path, 0, 1_234_567, 1_000_000)
    with found.writing(tmp_path):
        shown = found.bar(width)
    assert shown.startswith(bar)
    assert shown[len(shown) - len(shown.lstrip("[= ]")) :] == text
    assert len(shown) <= width


def test_before_the_first_row_the_phase_is_shown() -> None:
    found = RunProgress()
    assert found.bar(79) == found.line() == "Spark starts (0 s)"


def test_elsewhere_a_line_is_printed_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.001)
    monkeypatch.setattr(module, "LINE_S", 0.01)
    found = writing()
    with found.shown(quiet=False):
        while not capsys.readouterr().err:
            pass
    with found.shown(quiet=True):
        pass
    assert capsys.readouterr().out == ""
    assert found.samples[-1].seconds > found.samples[0].seconds


def test_a_task_leaves_its_counts_where_the_folder_is(tmp_path: Path) -> None:
    written = TaskWritten(7, task=3, start=12)
    for folder in (str(tmp_path), str(tmp_path / "of another host"), ""):
        left = TaskProgress(folder, written)
        left.handed_over(700)
        left.acknowledged(5, 500)
        left.close()
    (path,) = tmp_path.iterdir()
    assert path.name == "task-12.json", "each attempt has its own"
    assert Counts(**json.loads(path.read_text())) == Counts(7, 700, 5, 500)
