"""``kafka-sidecar`` and ``python -m sidecar``: starts on the standard library only."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line; without the [daemon] extra say how to get it."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"The kafka-sidecar command needs the [daemon] extra ({', '.join(missing)} missing): "
            "pip install 'kafka-sidecar[daemon]'.\n"
        )
        raise SystemExit(1)
    from sidecar.cli.main import cli

    cli(prog_name="kafka-sidecar")


if __name__ == "__main__":
    main()
