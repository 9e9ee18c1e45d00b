"""A file of results that is there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path of the same ending beside ``path``, and give the file there its name when the block has ended well.

    What is not a regular file, such as /dev/stdout, is written as it is.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()  # a link stays one
    partial = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
