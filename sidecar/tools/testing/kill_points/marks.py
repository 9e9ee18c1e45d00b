"""Comments that become calls: in an armed worker, modules are compiled with their kill points in them.

::

    # kill point: tell.head
    # kill point: encode.begin of batch
    # kill point: send.all if not self._outgoing
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final

from sidecar.tools.testing.kill_points.orders import passed

MARK: Final = re.compile(r"^( *)# kill point: ([a-z_.]+)(?: of (.+?))?(?: if (.+))?$", re.MULTILINE)
"""Groups: indentation, point, the work it is about, and the condition under which it counts."""


def with_calls(source: str) -> str:
    """Replace each mark by a call on the same line, so that tracebacks show the right lines."""
    return MARK.sub(_call, source)


def _call(mark: re.Match[str]) -> str:
    indent, point, subject, condition = mark.groups()
    call = f"{indent}{f'if {condition}: ' if condition else ''}_passed({point!r}"
    return f"{call}, {subject})" if subject else f"{call})"


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile from source, never from cached bytecode, which has no points."""
        source = with_calls(self.get_data(self.path).decode())
        return compile(source, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_passed"] = passed
        super().exec_module(module)
        if "RUN_ENTRIES" in vars(module):
            vars(module)["RUN_ENTRIES"] = 1  # so that a point before each entry is not just before each run


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname.startswith("sidecar.") else None
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


def arm() -> None:
    """Arm the process: modules imported from now on contain their kill points. Call before any such module is
    imported.
    """
    early = [
        name
        for name, module in sys.modules.items()
        if name.startswith("sidecar.") and isinstance(loader := module.__loader__, SourceFileLoader)
        if MARK.search(loader.get_data(loader.path).decode()) and name != __name__
    ]
    assert not early, f"imported before its kill points were armed: {early}"
    sys.meta_path.insert(0, _Finder())
