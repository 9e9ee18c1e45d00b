"""The ``kafka-sidecar`` command as the stub installs it: runs the daemon's command where the daemon is installed.

The entry point of the installed package calls it, in the command's process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec


def main() -> None:
    """Run the command line. Without the daemon's package, print how to install it and exit with 1."""
    if find_spec("sidecar") is None:
        sys.stderr.write(
            "The kafka-sidecar command needs the [daemon] extra, and this is the stub alone: "
            "pip install 'kafka-sidecar[daemon]'.\n"
        )
        raise SystemExit(1)
    # Imported by name: the stub must not depend on the daemon, which is another distribution.
    import_module("sidecar.__main__").main()
