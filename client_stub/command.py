"""The ``kafka-sidecar`` command as the stub installs it: it leads to the daemon's, where that is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec


def main() -> None:
    """Run the command line; without the daemon's package say how to get it, and exit 1."""
    if find_spec("sidecar") is None:
        sys.stderr.write(
            "The kafka-sidecar command needs the [daemon] extra, and this is the stub alone: "
            "pip install 'kafka-sidecar[daemon]'.\n"
        )
        raise SystemExit(1)
    # By name: the stub must not import the daemon, which is another distribution.
    import_module("sidecar.__main__").main()
