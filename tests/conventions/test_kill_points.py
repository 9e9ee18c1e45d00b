"""Goal: the registry of kill points is whole. The code passes each of its points, and no other."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.tools.testing.kill_points.marks import MARK, with_calls
from sidecar.tools.testing.kill_points.orders import PASSED_FILE, Order, give_order
from sidecar.tools.testing.kill_points.points import KERNEL_POINTS, POINTS

ROOT = Path(__file__).resolve().parents[2]


def marked_sources() -> list[tuple[Path, str]]:
    rooms = [path for path in (ROOT / "sidecar").rglob("*.py") if path.parent.name != "kill_points"]
    return [(path, text) for path in rooms if "# kill point" in (text := path.read_text())]


def named_in_code() -> set[str]:
    return {found[2] for _, text in marked_sources() for found in MARK.finditer(text)}


def test_every_mark_becomes_a_call() -> None:
    for path, text in marked_sources():
        armed = with_calls(text)
        assert "# kill point" not in armed, (
            f"{path}: a mark has another form than those in sidecar/tools/testing/kill_points/marks.py"
        )
        compile(armed, path, "exec")
        assert len(armed.splitlines()) == len(text.splitlines())


def test_a_mark_may_name_its_work_and_a_condition() -> None:
    source = (
        "if x:\n    y()\n    # kill point: a.b\n"
        "# kill point: c.d of e, f[0]\n"
        "# kill point: g.h if not i\n"
        "# a comment on kill points\n"
    )
    assert with_calls(source) == (
        "if x:\n    y()\n    _passed('a.b')\n_passed('c.d', e, f[0])\nif not i: _passed('g.h')\n"
        "# a comment on kill points\n"
    )


@pytest.mark.slow
def test_an_armed_process_compiles_the_marks_and_no_other_does() -> None:
    program = "from sidecar.shm.descriptors import DescriptorTable as T; print('_passed' in T.step.__code__.co_names)"
    found = [
        subprocess.run(
            [sys.executable, "-c", head + program], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()
        for head in ("", "from sidecar.tools.testing.kill_points.marks import arm; arm();")
    ]
    assert found == ["False", "True"]
    late = "import sidecar.shm.descriptors; from sidecar.tools.testing.kill_points.marks import arm; arm()"
    result = subprocess.run(
        [sys.executable, "-c", late], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert "imported before its kill points were armed: ['sidecar.shm.descriptors'" in result.stderr


def test_the_code_passes_what_is_registered() -> None:
    passed = named_in_code() | set(KERNEL_POINTS)
    unnamed, unpassed = passed - POINTS.keys(), POINTS.keys() - passed
    assert not unnamed, f"no row in POINTS of sidecar/tools/testing/kill_points/points.py: {unnamed}"
    assert not unpassed, f"no comment '# kill point: NAME' in sidecar/, and none of the kernel's: {unpassed}"


def test_the_kernel_s_numbers_are_the_registry_s() -> None:
    text = (ROOT / "sidecar/kernel/store_hook.pxi").read_text()
    names = re.findall(r"AT_([A-Z_]+) = (\d+)", text)
    assert [int(number) for _, number in names] == list(range(len(KERNEL_POINTS)))
    for (name, _), point in zip(names, KERNEL_POINTS, strict=True):
        words = set(name.lower().split("_"))
        assert words & set(re.split(r"[._]", point)), (name, point)


def run_worker(folder: Path, program: str) -> int:
    head = "from sidecar.tools.testing.kill_points.orders import passed, take_order\n"
    return subprocess.run(
        [sys.executable, "-c", f"{head}take_order({str(folder)!r})\n{program}"], cwd=ROOT, check=False
    ).returncode


def test_an_order_is_taken_by_one_process_and_strikes_at_its_pass(tmp_path: Path) -> None:
    give_order(tmp_path, "1", "tell.head", nth=3, during="live")
    program = "passed('tell.head')\npassed('adopt.end')\nfor _ in range(2): passed('tell.head')"
    assert run_worker(tmp_path, program) == 0, "three passes, two of them live"
    assert not list(tmp_path.glob("*.order"))
    assert run_worker(tmp_path, program + "\npassed('tell.head')") == 0, "nobody has an order any more"
    give_order(tmp_path, "2", "tell.head", nth=3, during="live")
    assert run_worker(tmp_path, program + "\npassed('tell.head')") == -signal.SIGKILL
    assert (tmp_path / PASSED_FILE).read_text().startswith("tell.head 3 live ")


_ENTRY = """
from sidecar.kernel import Chain, take_pages
owners, word = bytearray(8 * 4), bytearray(8)
chain = Chain(bytearray(4 * 4096), 4096, 0, 0, bytearray(8), incarnation=1, owners=owners)
chain.link_pages(take_pages(owners, 1, 4))
entry = chain.append({payload!r}, count=1, client_row=0, client_generation=1, stream=1, seq=1,
                     base_timestamp_ms=0, format=1, flags=0)
passed("index.begin", word, chain, entry.ordinal)
assert int.from_bytes(word, "little") >> 60 == 1, "noted, as the kernel does before it reads an entry"
"""


def test_an_order_with_a_text_stays_and_looks_at_the_content(tmp_path: Path) -> None:
    order = give_order(tmp_path, "1", "index.begin", text="poison", always=True)
    for _ in range(2):
        assert run_worker(tmp_path, _ENTRY.format(payload=b"a poison b")) == -signal.SIGKILL
        assert run_worker(tmp_path, _ENTRY.format(payload=b"bread")) == 0
    assert order.exists()


@pytest.mark.parametrize("data", [b'{"point": "nowhere"}', b'{"point": "tell.head", "nth": 0}'])
def test_an_order_must_name_a_point(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match="no order"):
        Order.read(data, tmp_path)


def test_without_orders_a_point_is_nothing(tmp_path: Path) -> None:
    assert run_worker(tmp_path, "passed('tell.head')") == 0
