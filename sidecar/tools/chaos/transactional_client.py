"""One client of a workload with transactions, as :mod:`sidecar.tools.chaos.client` starts one.

Its records are numbered, and each says of which transaction it is: the first number, and how many there are. One
transaction in five is aborted by plan, and one in three is filled by another producer, as a stage; some stages are
sealed and left out. Errors are met as docs/transactions.md says. An outcome is stored once the transaction has ended:
DELIVERED for committed, FAILED for aborted and left out, POSSIBLY for a commit that nobody can tell about.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from client_stub import Producer, Stage
from client_stub.errors import SidecarError, TransactionTimeout
from sidecar.tools.chaos.client import KEYS, RECORD_ID, run_client
from sidecar.tools.chaos.client_journal import ClientJournal, ClientState, Head, delivered_word, failed_word

TRANSACTION: Final = struct.Struct("<QI")
"""Number of the first record, records: after RECORD_ID in every value."""
VALUE_BYTES_MIN: Final = RECORD_ID.size + TRANSACTION.size
RECORDS_MAX: Final = 200
"""Of a transaction."""
ABORTED_SHARE: Final = 0.2
STAGED_SHARE: Final = 0.33
LEFT_OUT_SHARE: Final = 0.5
"""Of the staged transactions: those with a stage more that is not included."""
STAGED_PARTITIONS: Final = 2
STAGES_ALL: Final = (1 << 64) - 1
CALL_S: Final = 120.0


class TransactionalClient:
    """Belongs to the main thread; callbacks run on the producer's io thread."""

    def __init__(self, connect: Callable[..., Producer], topic: str, journal: ClientJournal) -> None:
        self._connect = connect
        self._topic = topic
        self._journal = journal
        self._head = journal.head
        self._delivered: dict[int, int] = {}
        """Words of records of the open transaction that were acknowledged."""
        self._is_begun = False

    def run(self, run: int, client: int, value_bytes: int) -> None:
        """Transactions until the journal says stop; another producer when one is of no use any more."""
        head, records_max = self._head, self._journal.records_max
        chance = Random(f"{run}-{client}")
        filler = b"." * max(0, value_bytes - VALUE_BYTES_MIN)
        number = 0
        while not head[Head.STOP] and number + 2 * RECORDS_MAX <= records_max:
            name = f"chaos-{run}-{head[Head.PLACE]}"
            with self._connect(transactional_id=name) as producer, self._connect() as stager:
                _repeated(producer.init_transactions)
                head[Head.STATE] = ClientState.SENDING
                due_s = time.monotonic()
                is_of_use = True
                while is_of_use and not head[Head.STOP] and number + 2 * RECORDS_MAX <= records_max:
                    count = chance.randint(1, RECORDS_MAX)
                    commits = chance.random() >= ABORTED_SHARE
                    numbers, record = range(number, number + count), (run, client, filler)
                    number += count
                    fill = partial(self._send, producer, record, numbers)
                    if chance.random() < STAGED_SHARE:
                        left_out = range(number, number)
                        if chance.random() < LEFT_OUT_SHARE:
                            left_out = range(number, number + chance.randint(1, RECORDS_MAX))
                            number = left_out.stop
                        fill = partial(
                            self._include, producer, partial(stager.stage, name), record, numbers, left_out
                        )
                    is_of_use = self._transact(producer, fill, numbers, commits)
                    count = number - numbers.start
                    rate = head[Head.RATE]
                    now_s = time.monotonic()
                    due_s = max(due_s + count / rate, now_s - 1.0) if rate else now_s
                    time.sleep(max(0.0, due_s - now_s))

    def _transact(self, producer: Producer, fill: Callable[[], None], numbers: range, commits: bool) -> bool:
        """One transaction, which ``fill`` begins and fills. Returns whether the producer is still of use."""
        head = self._head
        is_asked, is_fatal = False, False
        self._is_begun = False
        self._delivered.clear()
        head[Head.TRANSACTIONS] += 1
        try:
            fill()
            if not commits and numbers.start & 1:
                producer.flush(CALL_S)  # else most of it would never be written
            if commits:
                is_asked = True
                _repeated(producer.commit_transaction)
                self._note_committed(numbers)
                return True
        except SidecarError as error:
            head[Head.ABORTED_BY_FAULT] += 1
            is_fatal = error.fatal
        try:
            if not is_fatal and self._is_begun:
                _repeated(producer.abort_transaction)
                is_asked = False  # or it was asked for in vain: nothing of it is there
        except SidecarError as error:
            is_fatal = error.fatal
            if not is_fatal:
                raise
        head[Head.PRODUCERS_LOST] += is_fatal
        for number in numbers:
            self._journal.words[number] = failed_word(possibly_persisted=is_asked)
        return not is_fatal

    def _begin(self, producer: Producer) -> None:
        producer.begin_transaction()
        self._is_begun = True

    def _include(
        self,
        producer: Producer,
        open_stage: Callable[[int], Stage],
        record: tuple[int, int, bytes],
        numbers: range,
        left_out: range,
    ) -> None:
        """A transaction of one stage. ``left_out``: records of another one, which must never be seen."""
        for number in left_out:
            self._journal.words[number] = failed_word(possibly_persisted=False)
        # Those that were left out before, also by a client that was killed.
        _repeated(lambda timeout: producer.drop_stages(up_to=STAGES_ALL, timeout=timeout))
        tokens = [self._staged(open_stage, record, each) for each in (left_out, numbers) if each]
        self._begin(producer)
        _repeated(partial(producer.include, tokens[-1:]))
        for number in numbers:
            self._delivered[number] = delivered_word(number % STAGED_PARTITIONS, -1)

    def _staged(
        self, open_stage: Callable[[int], Stage], record: tuple[int, int, bytes], numbers: range
    ) -> bytes:
        """The token of a stage of these records."""
        run, client, filler = record
        rest = TRANSACTION.pack(numbers.start, len(numbers)) + filler
        token: list[bytes] = []
        with open_stage(numbers.start) as stage:
            for number in numbers:
                self._head[Head.SENT] = number + 1
                value = RECORD_ID.pack(run, client, number) + rest
                stage.send(self._topic, value=value, partition=number % STAGED_PARTITIONS)
            _repeated(lambda timeout: token.append(stage.seal(timeout)))
        return token[0]

    def _send(self, producer: Producer, record: tuple[int, int, bytes], numbers: range) -> None:
        self._begin(producer)
        run, client, filler = record
        rest = TRANSACTION.pack(numbers.start, len(numbers)) + filler
        for number in numbers:
            self._head[Head.SENT] = number + 1  # before it is true, as the client may be killed in between
            producer.send(
                self._topic,
                value=RECORD_ID.pack(run, client, number) + rest,
                key=b"key-%d" % (number % KEYS) if number & 1 else None,
                on_delivery=partial(self._on_delivery, number),
            )

    def _on_delivery(self, number: int, error: Any, metadata: Any) -> None:
        if error is None:
            self._delivered[number] = delivered_word(metadata.partition, metadata.offset)

    def _note_committed(self, numbers: range) -> None:
        """Every record of it has been acknowledged: a commit waits for that, and its callbacks are over before."""
        head, words = self._head, self._journal.words
        for number in numbers:
            words[number] = self._delivered[number]
        head[Head.NEWEST] = numbers.stop
        head[Head.COMMITTED] += 1


def _repeated(call: Callable[[float], object]) -> None:
    """As docs/transactions.md says: after a timeout the same call again waits for the same answer."""
    while True:
        try:
            call(CALL_S)
            return
        except TransactionTimeout:
            continue


if __name__ == "__main__":
    raise SystemExit(run_client(TransactionalClient))
