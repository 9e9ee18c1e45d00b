"""The doctor's sentence about memory limits, on trees of cgroup v1 and v2 as kernels and engines show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.doctor.memory import PROCESS_BYTES, MemoryLimit, memory_findings, memory_limit

MIB = 1 << 20


def tree(root: Path, table: str, **limits: str) -> Path:
    """``limits``: text by file below /sys/fs/cgroup."""
    (root / "proc" / "7").mkdir(parents=True)
    (root / "proc" / "7" / "cgroup").write_text(table)
    for name, text in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("table", "limits", "found"),
    [
        ("0::/a/b", {"a/b/memory.max": "1000", "a/memory.max": "max"}, ("a/b/memory.max", 1000)),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "900"}, ("a/memory.max", 900)),
        ("0::/a/b", {"a/b/memory.max": "1000", "a/memory.max": "900"}, ("a/memory.max", 900)),
        ("0::/", {"memory.max": "1000"}, ("memory.max", 1000)),
        ("0::/host/only/path", {"memory.max": "1000"}, ("memory.max", 1000)),
        ("0::/a", {"a/memory.max": "max"}, None),
        ("0::/", {}, None),
        ("", {}, None),
        (
            "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/",
            {
                "memory/a/b/memory.limit_in_bytes": "1000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
            },
            ("memory/a/b/memory.limit_in_bytes", 1000),
        ),
        (
            "4:hugetlb,memory:/docker/0123",
            {"memory/memory.limit_in_bytes": "1000"},
            ("memory/memory.limit_in_bytes", 1000),
        ),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_the_lowest_limit_counts(
    tmp_path: Path, table: str, limits: dict[str, str], found: tuple[str, int] | None
) -> None:
    root = tree(tmp_path, table, **limits)
    expected = None if found is None else MemoryLimit(found[1], root / "sys/fs/cgroup" / found[0])
    assert memory_limit(7, root) == expected


def test_this_machine_can_be_asked() -> None:
    found = memory_limit()
    assert found is None or (found.size_bytes > 0 and found.file.exists())


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_limit_that_is_one_byte_short_fails_and_says_what_to_do(tmp_path: Path, in_memory: bool) -> None:
    pool, workers = 512 * MIB, 2
    needed = 4 * PROCESS_BYTES + (pool if in_memory else 0)
    root = tree(tmp_path, "0::/", **{"memory.max": str(needed)})
    ((mark, text),) = memory_findings(7, pool, workers, pool_is_memory=in_memory, root=root)
    assert mark == "ok" and f"{needed >> 20:,} MiB" in text
    (root / "sys/fs/cgroup/memory.max").write_text(str(needed - 1))
    ((mark, text),) = memory_findings(7, pool, workers, pool_is_memory=in_memory, root=root)
    assert mark == "FAIL" and text.endswith(
        "raise the limit or lower buffer.memory or daemon.workers."
        if in_memory
        else "or lower daemon.workers."
    )
    assert ("buffer.memory, 512 MiB" in text) is in_memory
    assert text.count(".\n") == 0 and text.count("workers,") == 1


def test_no_limit_is_said(tmp_path: Path) -> None:
    ((mark, text),) = memory_findings(7, MIB, 1, pool_is_memory=True, root=tmp_path)
    assert (mark, text) == ("ok", "No cgroup limits the memory of the daemon.")
