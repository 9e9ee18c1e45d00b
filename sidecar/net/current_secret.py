"""CurrentSecret: the secret that a setting or its file has now. A mount that is away does not stop the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from sidecar.config.secret_sources import SecretError, read_secret
from sidecar.net.daemon_thread import NoThread, in_daemon_thread

log = logging.getLogger(__name__)

READ_S: Final = 1.0
"""How long a use waits for the file, in seconds. Then it gets the secret of the last reading."""


class CurrentSecret:
    """The secret of the setting ``name``, or of the file of ``name.file``, which is read again at each use. Belongs to
    the loop's thread.

    While the file cannot be used, the secret that was read last is valid; the log says so once.
    """

    def __init__(self, values: Mapping[str, Any], name: str, last: str | None = None) -> None:
        """``last``: the secret of an earlier reading."""
        self._values = values
        self._name = name
        self._last = last
        self._reading: asyncio.Future[str | None] | None = None
        """The last reading, which may never end. No second thread hangs with it."""
        self._said = ""

    async def get(self) -> str:
        """Return the secret. Raises SecretError for a file that cannot be used, if there is no earlier reading.

        Without an earlier one it waits as long as the reading takes: its caller has a limit of its own.
        """
        if not self._values.get(f"{self._name}.file"):
            return read_secret(self._values, self._name) or ""
        reading = self._reading
        if reading is None or reading.done():
            work = partial(read_secret, self._values, self._name)
            reading = self._reading = asyncio.ensure_future(in_daemon_thread(work, "secret"))
            reading.add_done_callback(_note_failure)
        await asyncio.wait([reading], timeout=None if self._last is None else READ_S)
        try:
            if not reading.done():
                path = self._values[f"{self._name}.file"]
                raise SecretError(f'{self._name}.file = "{path}": its mount does not answer.')
            self._last = reading.result() or ""
        except (SecretError, NoThread) as error:
            if self._last is None:
                raise SecretError(str(error)) from None
            if self._said != str(error):
                log.warning("%s The secret that was read last stays in use.", error)
            self._said = str(error)
        else:
            self._said = ""
        return self._last


def _note_failure(reading: asyncio.Future[str | None]) -> None:
    """Mark the failure of a reading as seen: nobody may wait for it any more, and asyncio would report it."""
    if not reading.cancelled():
        reading.exception()
