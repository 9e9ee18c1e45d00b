"""StubLog: the logger ``client_stub``, for code that must not fail because of it.

Its handlers and filters are the application's. A filter that looks for the request of its thread raises in the io
thread, which has none. That must not end the thread, as no record would then get an outcome.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import Final

_logger: Final = logging.getLogger("client_stub")
_CALLER: Final = 3
"""The stack level of the caller of ``warning`` and the others."""


class StubLog:
    """Logs as ``logging.Logger`` does. An exception of a handler or filter goes to stderr, as ``logging`` does with
    those that a handler catches itself.
    """

    def info(self, text: str, *values: object) -> None:
        self._log(logging.INFO, text, values)

    def warning(self, text: str, *values: object) -> None:
        self._log(logging.WARNING, text, values)

    def error(self, text: str, *values: object) -> None:
        self._log(logging.ERROR, text, values)

    def exception(self, text: str, *values: object) -> None:
        """As ``error``, with the exception that is being handled."""
        self._log(logging.ERROR, text, values, has_exception=True)

    def _log(self, level: int, text: str, values: tuple[object, ...], *, has_exception: bool = False) -> None:
        try:
            _logger.log(level, text, *values, exc_info=has_exception, stacklevel=_CALLER)
        except Exception:
            if logging.raiseExceptions and sys.stderr is not None:
                with contextlib.suppress(Exception):  # it may be closed, or an object of the application
                    traceback.print_exc()


log: Final = StubLog()
