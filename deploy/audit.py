"""``make audit``: known weaknesses of pinned packages, by pip-audit, and one sentence where nobody can be asked.

python deploy/audit.py PIP_AUDIT REQUIREMENTS [ARGUMENTS OF PIP_AUDIT]

First it asks about a package whose weakness every advisory service knows. Where that is not found, an answer
"no weakness" means nothing: there is no network, or a mirror of packages answers that has no advisories. Only the
standard library is used.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

KNOWN_WEAK: Final = "jinja2==2.4.1"
"""CVE-2014-1402, and others since."""
NOT_ASKED: Final = 3
"""The exit status when no advisory service could be asked."""
OPTIONS: Final = ("--strict", "--progress-spinner", "off", "--no-deps", "--disable-pip", "--requirement")
REASON_CHARACTERS_MAX: Final = 200
ASK_S: Final = 120.0
"""For the question about the weak package."""


def why_nobody_answers(pip_audit: str, arguments: list[str]) -> str | None:
    """The last words about the weak package; None: its weakness is known."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder, "requirements.txt")
        pinned.write_text(f"{KNOWN_WEAK}\n")
        # Whatever form the answer is wanted in, this one is for us.
        command = [pip_audit, *OPTIONS, str(pinned), *arguments, "--format", "columns", "--output", "stdout"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
        except subprocess.TimeoutExpired:
            return f"no answer within {ASK_S:g} s"
    if KNOWN_WEAK.partition("==")[0] in done.stdout.lower():
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    said = lines[-1].removeprefix("ERROR:pip_audit._cli:") if lines else f"exit status {done.returncode}"
    return said if len(said) <= REASON_CHARACTERS_MAX else f"{said[:REASON_CHARACTERS_MAX]}…"


def main(pip_audit: str, requirements: str, *arguments: str) -> int:
    why = why_nobody_answers(pip_audit, list(arguments))
    if why is not None:
        count = len(Path(requirements).read_text().splitlines())
        print(
            f"No advisory service can be asked from here, so the {count} packages in {requirements} are not audited "
            f"({why}): run `make audit` where https://pypi.org is reachable, or name another service with "
            "AUDIT_ARGS='--vulnerability-service osv'.",
            file=sys.stderr,
        )
        return NOT_ASKED
    return subprocess.run([pip_audit, *OPTIONS, requirements, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
