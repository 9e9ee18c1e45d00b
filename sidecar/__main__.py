"""``kafka-sidecar`` and ``python -m sidecar``: starts on the standard library only."""

from __future__ import annotations

import errno
import os
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

    try:
        cli(prog_name="kafka-sidecar")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        # Output that nothing can take, such as > /dev/full. Python would write it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write(f"The output cannot be written: {error.strerror}.\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
