"""Goal: long work shows a bar on a terminal and a line a minute elsewhere, and short work shows nothing."""

from __future__ import annotations

import ast
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Final

import pytest

from sidecar.cli import progress
from sidecar.cli.common import say
from sidecar.cli.progress import WorkDone, share_of

ROOT: Final = Path(__file__).resolve().parents[2]
WORK: Final = """
import logging, sys, threading

from sidecar.cli.common import say
from sidecar.cli import progress

progress.{name} = 0.01
looks = []
is_seen = threading.Event()

def work_done():
    looks.append(1)
    if len(looks) > 9:
        is_seen.set()
    return progress.WorkDone(f"{{{count}:,}} of 99,999 records delivered", {share})

with progress.progress(work_done):
    assert is_seen.wait(20)
    logging.getLogger("client_stub").warning("a line between")
    say("a line of the command")
    print("an offset", flush=True)
print("over", file=sys.stderr)
"""


def on_a_terminal(columns: int, terminal: str, share: str = "0.42", name: str = "SHOWN_AFTER_S") -> str:
    """What a terminal of so many columns gets as stderr and stdout."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    with subprocess.Popen(
        [sys.executable, "-c", WORK.format(name=name, share=share, count=12_345)],
        cwd=ROOT,
        env={**environment, "TERM": terminal},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65_536)
            except OSError:  # the child has ended
                break
    os.close(ours)
    assert child.returncode == 0, seen
    return seen.decode()


def lines_of(screen: str) -> list[str]:
    """The lines that were drawn, without colours and movements."""
    return [
        line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)) if line.strip()
    ]


@pytest.mark.parametrize("columns", [120, 80, 30])
def test_a_bar_fits_its_terminal_and_leaves_nothing(columns: int) -> None:
    screen = on_a_terminal(columns, "xterm-256color")
    lines = lines_of(screen)
    assert all(len(line) <= columns - 3 for line in lines), "room for the ^C that the terminal shows"
    bars = [line for line in lines if "12," in line]
    assert bars and all("42%" in line for line in bars)
    if columns >= 80:
        assert all("12,345 of 99,999 records delivered" in line for line in bars)
    assert {"a line between", "a line of the command", "an offset"} <= {*lines}, "each on a line of its own"
    assert screen.index("\x1b[?25h") > screen.index("\x1b[?25l"), "the cursor is there again"
    assert lines[-1] == "over" and "\x1b[2K" in screen, "the bar is gone"


def test_where_nobody_knows_how_much_there_is_the_bar_has_no_share() -> None:
    lines = lines_of(on_a_terminal(80, "xterm", "None"))
    assert any("12,345 of 99,999 records delivered" in line for line in lines)
    assert not any("%" in line for line in lines)


def test_a_dumb_terminal_gets_lines() -> None:
    screen = on_a_terminal(80, "dumb", name="LINE_S")
    assert "\x1b" not in screen and "12,345 of 99,999 records delivered, 42 % read, for " in screen


@pytest.mark.parametrize(("share", "read"), [("0.42", ", 42 % read"), ("None", "")])
@pytest.mark.parametrize(("count", "lines"), [("len(looks)", 9), ("12_345", 1)])
def test_elsewhere_there_is_a_line_now_and_then(share: str, read: str, count: str, lines: int) -> None:
    """None while nothing comes: a service that reads a pipe may rest for days."""
    ended = subprocess.run(
        [sys.executable, "-c", WORK.format(name="LINE_S", share=share, count=count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == "an offset\n", "stdout is the command's"
    *told, between, command, over = sorted(ended.stderr.splitlines())
    assert (between, command, over) == ("a line between", "a line of the command", "over")
    assert len(told) >= lines if lines > 1 else len(told) == 1
    assert all(
        re.fullmatch(rf"[\d,]+ of 99,999 records delivered{read}, for \d+ s so far\.", line) for line in told
    )


def test_sentence_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a line of the work, which another thread prints, comes between a sentence and its end."""

    class Pieces(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    pieces: list[str] = []
    monkeypatch.setattr(sys, "stderr", Pieces())
    say("One sentence.")
    assert [each for each in pieces if each] == ["One sentence.\n"]


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), progress.progress(lambda: WorkDone("never", None)):
        raise ZeroDivisionError
    assert capsys.readouterr() == ("", "")


def test_the_share_of_a_file_that_was_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1_000_000)
    with file.open("rb") as stream:
        share = share_of(stream)
        assert share() == 0.0
        stream.read(500_000)
        assert 0.5 <= (share() or 0) < 0.6
        stream.read()
        assert share() == 1.0
    assert share() is None, "closed"
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        assert share_of(pipe)() is None
    file.write_bytes(b"")
    with file.open("rb") as empty:
        assert share_of(empty)() is None


def test_every_command_prints_sentences_on_stderr_by_say() -> None:
    """click.echo(err=True) writes past rich, into the bar."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "sidecar" / "cli").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "err"
    ]
    assert not found, f"use sidecar.cli.common.say: {found}"
