"""A worker's rooms, as the product builds them, moved by hand: no sockets, no threads of a loop, a manual clock."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from sidecar.common.control import ControlMessage, Start
from sidecar.config.client_rules import ClientRules
from sidecar.deadletter.spool import SpoolWriter
from sidecar.producer.config import ProducerConfig
from sidecar.producer.topic_settings import TopicRules
from sidecar.shm.segment import Segment
from sidecar.worker.build import Outside, Rooms, build
from sidecar.worker.settings import WorkerSettings
from sidecar.worker.slot_memory import SlotMemory
from sidecar.worker.streams.client_limits import ClientLimits
from sidecar.worker.streams.outboxes import Outboxes
from sidecar.worker.streams.session import ClientSession
from tests.configs import DEFAULTS, producer_config
from tests.manual_clock import ManualClock

INFINITY = float("inf")
EPOCH = 77
KEY = b"k" * 32


class Handle:
    """A call that a loop was asked for."""

    def __init__(self, callback: Callable[..., None], args: tuple[Any, ...], at_ms: float) -> None:
        self.callback = callback
        self.args = args
        self.at_ms = at_ms
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualLoop:
    """The part of an event loop that the rooms use; it goes on when :meth:`run` is called. Coroutines do not run
    here."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.calls: list[Handle] = []
        self.host: ManualHost | None = None
        """Whose timer rings."""

    def call_soon(self, callback: Callable[..., None], *args: Any) -> Handle:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> Handle:
        self.calls.append(Handle(callback, args, self.clock.now_ms() + 1000 * delay_s))
        return self.calls[-1]

    def add_reader(self, *_: object) -> None:
        """Processes are watched by nobody: none dies here."""

    def remove_reader(self, *_: object) -> None: ...

    def run(self, ms: float = 0.0) -> None:
        """Let so much time pass, step by step from one thing that is due to the next."""
        end_ms = self.clock.now_ms() + ms
        while True:
            now_ms = self.clock.now_ms()
            due = [each for each in self.calls if each.at_ms <= now_ms]
            self.calls = [each for each in self.calls if each.at_ms > now_ms]
            for each in due:
                if not each.is_cancelled:
                    each.callback(*each.args)
            if due:
                continue
            timer_ms = self.host.timer_ms if self.host is not None else INFINITY
            next_ms = min([timer_ms, *(each.at_ms for each in self.calls)])
            if next_ms > end_ms:
                self.clock.advance(end_ms - now_ms)
                return
            self.clock.advance(max(0.0, next_ms - now_ms))
            if self.host is not None and timer_ms <= next_ms:
                self.host.timer_ms = INFINITY
                self.host.on_timer()


class ManualHost:
    """The process around the rooms: notes what they ask of it."""

    def __init__(self) -> None:
        self.sent: list[ControlMessage] = []
        self.given_up: list[str] = []
        self.woken = 0
        self.timer_ms = INFINITY
        self.on_timer: Callable[[], None] = lambda: None
        self.work: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []

    def send_control(self, message: ControlMessage) -> None:
        self.sent.append(message)

    def wake_workers(self) -> None:
        self.woken += 1

    def give_up(self, why: str) -> None:
        self.given_up.append(why)

    def set_timer(self, at_ms: float) -> None:
        self.timer_ms = at_ms

    def run_beside(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.work.append((work, done))

    def run_work(self) -> None:
        """Do what the thread for slow disks would."""
        while self.work:
            work, done = self.work.pop(0)
            try:
                work()
            except Exception as error:
                done(error)
            else:
                done(None)


class ListedOutboxes(Outboxes):
    """Messages for stubs as a list, in place of their outboxes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, list[Any]]] = []

    def send(self, session: ClientSession, message: list[Any]) -> None:
        self.sent.append((session.name, message))


class ManualWorker:
    """One worker's rooms on a real segment and the compiled kernel."""

    def __init__(
        self,
        segment: Segment,
        *,
        slot: int = 0,
        incarnation: int = 5,
        clock: Any = None,
        loop: Any = None,
        config: ProducerConfig | None = None,
        patterns: dict[str, dict[str, Any]] | None = None,
        links: Any = None,
        spool: Path | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.loop = loop or ManualLoop(self.clock)
        self.host = ManualHost()
        if isinstance(self.loop, ManualLoop):
            self.loop.host = self.host
        else:
            self.host.set_timer = self._ring_later  # type: ignore[method-assign]
        values = DEFAULTS | {"topics": {}, "clients": {}} | (settings or {})
        config = config or producer_config()
        self.settings = dataclasses.replace(
            WorkerSettings.from_mapping(values), config=config, rules=TopicRules(config, patterns), workers=1
        )
        segment.prepare_slot(slot)
        self.memory = SlotMemory.claim(
            segment,
            slot,
            incarnation=incarnation,
            pid=0,
            workers=1,
            wake_workers=self.host.wake_workers,
            monotonic_ns=lambda: int(self.clock.now_ms() * 1e6),
        )
        start = Start(
            worker_index=0,
            worker_epoch=EPOCH,
            slot=slot,
            incarnation=incarnation,
            endpoint="",
            instance_key=KEY,
            segment_fd=-1,
        )
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        clock_of_rooms = cast(Any, self.clock)
        self.rooms: Rooms = build(
            start,
            self.settings,
            self.memory,
            Outside(
                host=self.host,
                loop=loop,
                clock=clock_of_rooms,
                links=links or cast(Any, NoLinks()),
                spool=SpoolWriter(spool or Path("/nowhere"), "w", max_bytes=1 << 20, drop_oldest=False),
                random=random.Random(1),
            ),
        )
        self.host.on_timer = self.rooms.turns.on_timer

    def _ring_later(self, at_ms: float) -> None:
        """On a real loop: TurnTimer's part."""
        self.loop.call_later(max(0.0, at_ms - self.clock.now_ms()) / 1000, self.rooms.turns.on_timer)


class NoLinks:
    """A cluster in which no broker can be reached, in place of ClusterLinks."""

    connection_count = 0
    ready_links: tuple[()] = ()
    connected: frozenset[int] = frozenset()

    def report_to(self, **callbacks: Any) -> None: ...
    def update_nodes(self, nodes: object) -> None: ...

    def ready(self, node: object) -> None: ...
    def link(self, node_id: int) -> None: ...
    def stalled_since_ms(self, node_id: int) -> None: ...
    def last_error(self, node_id: int) -> str | None: ...

    def slow_step(self, node_id: int, now_ms: float) -> str:
        return ""

    def has_refused(self, node_id: int) -> bool:
        return False

    def next_attempt_delay_ms(self, node_id: int, now_ms: float) -> float:
        return INFINITY


def no_limits() -> ClientLimits:
    """As without any [clients.NAME]."""
    return ClientLimits(
        ClientRules({}),
        segment=None,
        workers=1,
        counters=None,  # type: ignore[arg-type]
    )
