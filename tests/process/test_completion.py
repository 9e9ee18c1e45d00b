"""Goal: the line for completion in docs/getting-started.md works as it stands, in each shell that is here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import needs

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "getting-started.md").read_text()
LINES = dict(
    re.findall(
        r"^(\w+): +(.*_KAFKA_SIDECAR_COMPLETE=\w+_source kafka-sidecar.*?) *(?:#.*)?$", PAGE, re.MULTILINE
    )
)
"""The line by shell."""
ASK = {
    "bash": """
{line}
COMP_WORDS=({words}); COMP_CWORD={last}
complete -p kafka-sidecar >/dev/null || exit 9
_kafka_sidecar_completion kafka-sidecar
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    # compdef and compadd are of a terminal; their input is what a terminal shows.
    "zsh": """
autoload -Uz compinit && compinit -u -d $HOME/dump
{line}
[[ $_comps[kafka-sidecar] = _kafka_sidecar_completion ]] || exit 9
compadd() {{ print -l -- ${{(P)@[-1]}} }}
_describe() {{ print -l -- ${{(P)3}} }}
words=({words}); CURRENT=$(({last} + 1))
_kafka_sidecar_completion
""",
    "fish": """
{line}
complete --do-complete "{text}"
""",
}


def complete(shell: str, *words: str, home: Path) -> set[str]:
    """The shell's offers for the last word."""
    place = str(Path(sys.executable).parent)
    script = ASK[shell].format(
        line=LINES[shell],
        words=" ".join(f"'{word}'" for word in words),
        last=len(words) - 1,
        text=" ".join(words),
    )
    done = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else []), "-c", script],
        env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "HOME": str(home), "ZDOTDIR": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {re.split(r"[\t:]", line)[0] for line in done.stdout.split("\n") if line}


def test_the_page_has_a_line_for_each_shell() -> None:
    assert LINES.keys() == ASK.keys()


@pytest.mark.parametrize(
    "shell",
    [pytest.param(each, marks=needs(each)) for each in ASK],
)
def test_a_shell_completes_commands_options_and_choices(shell: str, tmp_path: Path) -> None:
    assert complete(shell, "kafka-sidecar", "re", home=tmp_path) == {"recover", "reload", "replay", "resume"}
    offered = complete(shell, "kafka-sidecar", "produce", "--key", home=tmp_path)
    assert offered == {"--key", "--key-separator"}
    assert complete(shell, "kafka-sidecar", "top", "--sort", "r", home=tmp_path) == {"rate"}
