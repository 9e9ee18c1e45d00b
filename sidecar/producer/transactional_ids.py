"""TransactionalIds: numbers the batches of a transactional lane, under the identity of its TransactionManager.

Nothing here is repaired: where the idempotent lane would begin an epoch or number batches again, the transaction can
only be aborted. A broker keeps a producer id as long as a transaction of it is open, whatever the records' timestamps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import NO_PARTITION, LocalCode
from sidecar.producer.producer_id import number_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.common.model import ProducerIdAndEpoch
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.transaction_manager import TransactionManager

NEVER_OLD_MS: Final = -1
"""No record is older: a batch of a transaction never waits because of its timestamps."""


class TransactionalIds:
    """The identity of one transactional lane. Single-threaded: the worker's loop."""

    __slots__ = ("_number", "is_wanted", "manager", "topics")

    def __init__(self, manager: TransactionManager) -> None:
        self.manager = manager
        self.is_wanted = False
        """Never: the client asks for its producer id itself."""
        self._number = 0
        self.topics: set[str] = set()
        """Topics with batches that were sent in transaction ``_number``."""

    @property
    def identity(self) -> ProducerIdAndEpoch:
        return self.manager.identity

    def number(self, batches: Sequence[ProducerBatch]) -> None:
        """As :meth:`ProducerIds.number`."""
        number_batches(batches, self.manager.identity, NEVER_OLD_MS)
        if self._number != self.manager.number:
            self._number = self.manager.number
            self.topics.clear()
        self.topics.update(batch.topic for batch in batches)
        self.manager.produced()

    @staticmethod
    def may_be_forgotten(batch: ProducerBatch) -> bool:
        """Whether a broker may have dropped the producer id since it got the batch: not in a transaction."""
        return False

    def recreated(self, topic: str) -> None:
        """Note that a topic is gone or has another id: what was acknowledged in this transaction is gone with it."""
        if topic in self.topics and self._number == self.manager.number:
            text = "the topic was deleted, or created again, since it got records of this transaction."
            self.manager.batch_failed(topic, NO_PARTITION, LocalCode.TOPIC_DELETED, text)
