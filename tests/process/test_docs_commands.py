"""Goal: a newcomer who types what docs/getting-started.md says sees what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.testing.daemon import SidecarDaemon
from sidecar.testing.fake_broker import FakeBroker

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "getting-started.md").read_text()
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with FakeBroker({"greetings": 3, "orders": 3}) as kafka, SidecarDaemon(kafka.bootstrap_servers) as daemon:
        yield {**os.environ, "KAFKA_SIDECAR_RUN_DIR": str(daemon.run_dir)}


def blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def shown_after(code: str) -> str:
    """The block that the page shows as the output of ``code``."""
    found = blocks(PAGE)
    place = next(number for number, (_, text) in enumerate(found) if text.strip() == code.strip())
    return found[place + 1][1]


def with_any_number(text: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\?\d+(\\\.\d+)?", r"[\\d.]+", re.escape(text.strip())))


def typed(code: str, environment: dict[str, str], *, language: str = "") -> str:
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-c", code]
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        command,
        env={**environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return (done.stdout + done.stderr).strip()


def test_the_first_record_from_the_shell(environment: dict[str, str]) -> None:
    (code,) = [text for _, text in blocks(PAGE) if text.startswith("echo hello")]
    assert with_any_number(shown_after(code)).fullmatch(typed(code, environment))


def test_the_first_producer(environment: dict[str, str]) -> None:
    (code,) = [text for language, text in blocks(PAGE) if language == "python"]
    assert with_any_number(shown_after(code)).fullmatch(typed(code, environment, language="python"))


def test_the_status_has_the_lines_of_the_page(environment: dict[str, str]) -> None:
    printed = typed("kafka-sidecar status", environment).splitlines()
    shown = shown_after("kafka-sidecar status\n").splitlines()
    assert [line.split()[0] for line in printed] == [line.split()[0] for line in shown]
    assert printed[-1].startswith(shown[-1].split("0 accepted")[0])


def test_the_example_of_the_readme(environment: dict[str, str]) -> None:
    code = next(text for language, text in blocks((ROOT / "README.md").read_text()) if language == "python")
    assert typed(code, environment, language="python").startswith("RecordMetadata(topic='orders', partition=")
