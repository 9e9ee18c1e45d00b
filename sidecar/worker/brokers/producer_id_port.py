"""ProducerIdPort: asks brokers for a producer id, without waiting long for one that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sidecar.common.errors import Code
from sidecar.common.model import broker_of
from sidecar.net.kafka.connector import LinkError
from sidecar.protocol.init_producer_id import init_producer_id_request, parse_init_producer_id
from sidecar.protocol.messages import ApiKey, ProtocolError

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.metadata.cache import MetadataCache
    from sidecar.net.kafka.broker_link import BrokerLink
    from sidecar.net.kafka.cluster_links import ClusterLinks
    from sidecar.producer.sender import Sender
    from sidecar.shm.slots import SlotView
    from sidecar.worker.turns import Turns

ALONE_MS: Final = 1_000.0
"""Time in ms after which all other brokers are asked as well. A second id is not used; brokers have plenty."""


class ProducerIdPort:
    """Carries out InitProducerId, which any broker can answer. Belongs to the worker's loop.

    Asking one broker only would not be enough: if it was stopped after it was connected, all records would wait until
    request.timeout.ms (as with Kafka's producer).
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: MonotonicClock,
        cache: MetadataCache,
        sender: Sender,
        links: ClusterLinks,
        turns: Turns,
        slot: SlotView,
    ) -> None:
        """``slot``: where the identity is stored for ``kafka-sidecar status``."""
        self._loop = loop
        self._clock = clock
        self._cache = cache
        self._sender = sender
        self._links = links
        self._turns = turns
        self._slot = slot
        self._is_wanted = False
        self._asks_all = False
        self._asked: set[int] = set()
        """Brokers asked in this round; each once."""
        self._asking: set[asyncio.Task[None]] = set()
        self._error: tuple[int, str] = (Code.NETWORK_EXCEPTION, "")
        """(code, text) that the sender gets when all brokers have refused or were lost."""
        self._timer: asyncio.TimerHandle | None = None

    def init_producer_id(self) -> None:
        """Ask a connected broker for a producer id, as soon as there is one."""
        self._is_wanted = True
        self._asks_all = False
        self._error = (Code.NETWORK_EXCEPTION, "")
        self.step()

    def step(self) -> None:
        """Continue after a link became ready, brokers became known, or time passed."""
        if not self._is_wanted:
            return
        for link in self._links.ready_links:
            if self._asking and not self._asks_all:
                return
            broker = broker_of(link.node.id)
            if broker not in self._asked:
                self._asked.add(broker)
                self._asking.add(self._loop.create_task(self._ask(link)))
                if not self._asks_all:
                    self._call_later(ALONE_MS, self._ask_all)
        if self._asking and not self._asks_all:
            return
        # Nothing is drained without an identity, so nothing else requests a link: wait for the backoff here.
        delays_ms = [float("inf")]
        for node in self._cache.current.nodes.values():
            if node.id not in self._asked:
                self._links.ready(node)
                delays_ms.append(self._links.next_attempt_delay_ms(node.id, self._clock.now_ms()))
        soonest_ms = min(delays_ms)
        if soonest_ms < float("inf"):
            self._call_later(soonest_ms + 1, self.step)

    def _ask_all(self) -> None:
        self._asks_all = True
        self.step()

    def _call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_ms / 1000, call)

    async def _ask(self, link: BrokerLink) -> None:
        try:
            version = link.version(ApiKey.INIT_PRODUCER_ID)
            if version is None:
                raise LinkError(f"{link.node} does not offer InitProducerId; set enable.idempotence=false.")
            result = parse_init_producer_id(await link.request(init_producer_id_request(version)))
        except (LinkError, ProtocolError) as error:
            if self._error[0] == Code.NETWORK_EXCEPTION:
                self._error = (Code.NETWORK_EXCEPTION, str(error))
        except Exception:
            # A task in this set is never collected, so asyncio would not report its failure, and no other is asked.
            self._asking -= {asyncio.current_task()}
            raise
        else:
            if not result.error_code:
                self._end()
                identity = result.identity
                self._sender.on_producer_id(identity.producer_id, identity.epoch, self._clock.now_ms())
                self._slot.store_producer(identity.producer_id, identity.epoch)
                self._turns.wake()
                return
            self._error = (result.error_code, "")
        self._asking -= {asyncio.current_task()}
        if not self._asking:
            # No broker gave an id: the sender asks again after its backoff.
            self._end()
            code, text = self._error
            self._sender.on_producer_id_error(code, self._clock.now_ms(), text)
        self._turns.wake()

    def _end(self) -> None:
        """End this round. Later answers are ignored."""
        self._is_wanted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._asked.clear()
        asking, self._asking = self._asking, set()
        for task in asking:
            if task is not asyncio.current_task():
                task.cancel()
