"""Goal: `make audit` says in one sentence that nobody could be asked, and is as strict as pip-audit where one can.

Method: programs in place of pip-audit say what it says: it is in no environment of the tests, and nor is a service.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).resolve().parents[2] / "deploy" / "audit.py"
WEAK = 'print("Found 2 known vulnerabilities in 1 package\\njinja2 2.4.1 CVE-2014-1402 2.7.2"); sys.exit(1)'
FAULTS = {
    "no network": "import requests_that_are_not_there",
    "a mirror without advisories": (
        'print("ERROR:pip_audit._cli:jinja2: Dependency not found on PyPI", file=sys.stderr); sys.exit(1)'
    ),
    "a mirror that knows of no weakness": 'print("No known vulnerabilities found", file=sys.stderr)',
}


def audit(
    folder: Path, *, weak: str, own: str, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """With a pip-audit that does ``weak`` when it is asked about the weak package, and ``own`` about ours."""
    requirements = folder / "product.txt"
    requirements.write_text("click==8.1.7\nmsgpack==1.0.8\n")
    program = folder / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "assert {'--strict', '--no-deps', '--disable-pip'} <= set(sys.argv)\n"
        "asked = open(sys.argv[sys.argv.index('--requirement') + 1]).read()\n"
        f"if 'jinja2' in asked:\n    {weak}\nelse:\n    {own}\n"
    )
    program.chmod(0o700)
    command = [sys.executable, str(AUDIT), str(program), str(requirements), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_where_nobody_can_be_asked_it_ends_with_one_sentence(tmp_path: Path, fault: str) -> None:
    """Also where a service says that all is well, and would say so of anything."""
    done = audit(tmp_path, weak=FAULTS[fault], own="pass")
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("No advisory service can be asked from here, so the 2 packages in ")
    assert "ERROR:pip_audit" not in line and "--vulnerability-service osv" in line


@pytest.mark.parametrize("status", [0, 1])
def test_where_one_can_be_asked_its_word_counts(tmp_path: Path, status: int) -> None:
    done = audit(
        tmp_path,
        weak=WEAK,
        own=f"print(sys.argv[-1]); sys.exit({status})",
        arguments=("--format", "json"),
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "json\n", "")
