"""``kafka-sidecar`` and ``python -m sidecar``: starts on the standard library only."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from sidecar.config.needed_packages import NEEDED_PACKAGES


def main() -> None:
    """Run the command line; without the [daemon] extra, or with half of it, say how to get it."""
    try:
        from sidecar.cli.main import cli

        cli(prog_name="kafka-sidecar")
    except ModuleNotFoundError:
        missing = [name for name in NEEDED_PACKAGES if find_spec(name) is None]
        if not missing:
            raise
        sys.stderr.write(
            f"The kafka-sidecar command needs the [daemon] extra ({', '.join(missing)} missing): "
            "pip install 'kafka-sidecar[daemon]'.\n"
        )
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
