"""Goal: the registry of kill points is whole. What the code passes is in it, and what is in it is passed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.common.kill_points import KERNEL_POINTS, PASSED_FILE, POINTS, Order, give_order
from sidecar.kernel import STORE_POINTS

ROOT = Path(__file__).resolve().parents[2]
_CALL = re.compile(r"\bpassed\(([^)]*)")
_NAME = re.compile(r'"([a-z_]+\.[a-z_]+)"')


def named_in_code() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "sidecar").rglob("*.py"):
        if path.parent.name != "testing":
            for call in _CALL.findall(path.read_text()):
                found.update(_NAME.findall(call))
    return found


def test_the_code_passes_what_is_registered() -> None:
    assert named_in_code() | set(KERNEL_POINTS) == POINTS.keys()
    assert len(KERNEL_POINTS) == STORE_POINTS


def test_the_kernel_s_numbers_are_the_registry_s() -> None:
    text = (ROOT / "sidecar/kernel/store_hook.pxi").read_text()
    names = re.findall(r"AT_([A-Z_]+) = (\d+)", text)
    assert [int(number) for _, number in names] == list(range(STORE_POINTS))
    for (name, _), point in zip(names, KERNEL_POINTS, strict=True):
        words = set(name.lower().split("_"))
        assert words & set(re.split(r"[._]", point)), (name, point)


def run_worker(folder: Path, program: str) -> int:
    head = "from sidecar.common.kill_points import *\nfrom sidecar.common import kill_points\n"
    return subprocess.run(
        [sys.executable, "-c", f"{head}take_order({str(folder)!r})\n{program}"], cwd=ROOT, check=False
    ).returncode


def test_an_order_is_taken_by_one_process_and_strikes_at_its_pass(tmp_path: Path) -> None:
    give_order(tmp_path, "1", "tell.head", nth=3, during="live")
    program = "kill_points.passed('tell.head')\nadoption_is_over()\nfor _ in range(2): kill_points.passed('tell.head')"
    assert run_worker(tmp_path, program) == 0, "three passes, two of them live"
    assert not list(tmp_path.glob("*.order"))
    assert run_worker(tmp_path, program + "\nkill_points.passed('tell.head')") == 0, (
        "nobody has an order any more"
    )
    give_order(tmp_path, "2", "tell.head", nth=3, during="live")
    assert run_worker(tmp_path, program + "\nkill_points.passed('tell.head')") == -signal.SIGKILL
    assert (tmp_path / PASSED_FILE).read_text().startswith("tell.head 3 live ")


def test_an_order_with_a_text_stays_and_looks_at_the_content(tmp_path: Path) -> None:
    order = give_order(tmp_path, "1", "index.begin", text="poison", always=True)
    for _ in range(2):
        assert (
            run_worker(tmp_path, "kill_points.passed('index.begin', lambda: b'a poison b')")
            == -signal.SIGKILL
        )
        assert run_worker(tmp_path, "kill_points.passed('index.begin', lambda: b'bread')") == 0
        assert run_worker(tmp_path, "kill_points.passed('index.begin')") == 0
    assert order.exists()


@pytest.mark.parametrize("data", [b'{"point": "nowhere"}', b'{"point": "tell.head", "nth": 0}'])
def test_an_order_must_name_a_point(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match="no order"):
        Order.read(data, tmp_path)


def test_without_orders_a_point_is_nothing(tmp_path: Path) -> None:
    assert run_worker(tmp_path, "kill_points.passed('tell.head')") == 0
