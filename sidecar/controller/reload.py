"""Reload: on SIGHUP the daemon reads its configuration again, and applies all of it or nothing.

The command ``kafka-sidecar reload`` sends the signal, as the kernel then checks the permission: only the same user or
root may send it. The answer is a file in the run directory that only that user can read. It has the monotonic time at
which the reload began, so that each caller can recognise the answer to its own request.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sidecar.config.live import difference
from sidecar.config.settings import ConfigError, SidecarConfig
from sidecar.net.daemon_thread import in_daemon_thread

log = logging.getLogger(__name__)

RELOAD_SIGNAL: Final = signal.SIGHUP
WORKERS_ANSWER_S: Final = 5.0
"""How long a reload waits for its workers. A worker that is replaced meanwhile starts with the new settings anyway."""
READ_S: Final = 10.0
"""How long a reload waits for the reading of its files. The command waits 30 s."""

ReadConfig = Callable[[], SidecarConfig]
UseConfig = Callable[[SidecarConfig], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of one reload. ``began_s`` is CLOCK_MONOTONIC."""

    began_s: float
    took_ms: float = 0.0
    changes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """One sentence per fault. If there is any, nothing was changed."""
    needs_takeover: bool = False
    """Whether only a new daemon can apply these settings."""
    warnings: tuple[str, ...] = ()


class Reload:
    """Runs one reload at a time; one requested meanwhile follows. Belongs to the controller's loop.

    ``read`` runs in a thread and raises ConfigError. ``use`` applies the new configuration, and returns one sentence
    for each worker that has not confirmed it in time. ``publish`` writes the result for the command.
    """

    def __init__(
        self,
        config: SidecarConfig,
        *,
        read: ReadConfig,
        use: UseConfig,
        publish: Callable[[dict[str, Any]], None],
        spawn: Callable[[Any], object],
    ) -> None:
        self._config = config
        self._read = read
        self._use = use
        self._publish = publish
        self._spawn = spawn
        self._is_running = False
        self._is_asked = False
        self._reading: asyncio.Future[SidecarConfig] | None = None
        """The last reading, which may hang for ever; then no second thread is started."""

    def ask(self) -> None:
        """Handle the signal."""
        self._is_asked = True
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._is_asked:
                self._is_asked = False
                result = await self._reload()
                try:
                    self._publish(asdict(result))
                except OSError as error:
                    log.error("The result of the reload cannot be written: %s.", error)
        finally:
            self._is_running = False

    async def _reload(self) -> ReloadResult:
        began_s = time.monotonic()
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = asyncio.ensure_future(in_daemon_thread(self._read, "reload"))
            reading.add_done_callback(_note_failure)
            await asyncio.wait([reading], timeout=READ_S)
        if not reading.done():
            return self._refuse(
                began_s,
                [
                    f"The configuration is being read for more than {READ_S:g} s: a file of it is a pipe, or its disk "
                    "does not answer. Reload again once the file can be read."
                ],
            )
        try:
            new = reading.result()
        except ConfigError as error:
            return self._refuse(began_s, error.sentences)
        except Exception as error:
            log.exception("The configuration could not be read for an unknown reason.")
            return self._refuse(began_s, [f"The configuration cannot be read: {error!r}."])
        found = difference(self._config, new)
        if found.refusals:
            return self._refuse(began_s, found.refusals, needs_takeover=True)
        late: list[str] = []
        if found.changes:
            try:
                late = await self._use(new)
            except Exception as error:
                log.exception("The new configuration could not be applied for an unknown reason.")
                await self._go_back()
                return self._refuse(began_s, [f"The configuration cannot be applied: {error!r}."])
            self._config = new
        result = ReloadResult(
            began_s,
            took_ms=(time.monotonic() - began_s) * 1000,
            changes=found.changes,
            warnings=(*new.warnings, *late),
        )
        for sentence in result.warnings:
            log.warning("%s", sentence)
        log.info(
            "Reloaded the configuration in %.0f ms: %s.",
            result.took_ms,
            "; ".join(result.changes) or "nothing has changed",
        )
        return result

    async def _go_back(self) -> None:
        """Restore the earlier settings everywhere, as half of the new ones may be in use."""
        try:
            await self._use(self._config)
        except Exception:
            log.exception("Nor can the earlier configuration: restart with kafka-sidecar run --takeover.")

    def _refuse(
        self, began_s: float, sentences: Sequence[str], *, needs_takeover: bool = False
    ) -> ReloadResult:
        log.error("Reload refused, the earlier configuration stays in use: %s", " ".join(sentences))
        return ReloadResult(
            began_s,
            took_ms=(time.monotonic() - began_s) * 1000,
            faults=tuple(sentences),
            needs_takeover=needs_takeover,
        )


def _note_failure(reading: asyncio.Future[SidecarConfig]) -> None:
    """Take the failure of a late reading, which has no waiter any more, as asyncio would otherwise complain
    about it.
    """
    if not reading.cancelled():
        reading.exception()
