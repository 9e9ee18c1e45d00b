"""FakeControls: what a test does with either fake producer, beyond what a program does.

A test calls it, in any thread.
"""

from __future__ import annotations

from client_stub.fakes.fake_engine import FakeEngine
from client_stub.fakes.memory_daemon import FailWith, FakeRecord
from client_stub.fakes.sealed_stages import sealed_stages
from client_stub.records.arguments import check_callable, check_count


class FakeControls:
    """A base of FakeProducer and FakeAsyncProducer, next to the real producer. Thread-safe."""

    _engine: FakeEngine

    def _set_up(self, partitions: int, fail_with: FailWith | None) -> None:
        check_count("partitions", partitions)
        if fail_with is not None:
            check_callable("fail_with", fail_with, "fail_with(record)")
        self._engine.daemon.partitions = partitions
        self._engine.daemon.fail_with = fail_with

    @property
    def records(self) -> list[FakeRecord]:
        """All records that were sent, in order."""
        return self._engine.daemon.records

    @property
    def committed(self) -> list[FakeRecord]:
        """The records that a reader with read_committed sees: without a transactional id all that were delivered."""
        return self._engine.daemon.committed

    @property
    def staged(self) -> dict[bytes, list[FakeRecord]]:
        """The records of the stages that this producer has sealed and nobody has included yet, by their tokens. Every
        fake with their transactional id may include them, also one of another test's thread.
        """
        found = {token: sealed_stages.records_of(token) for token in self._engine.daemon.staged_tokens}
        return {token: records for token, records in found.items() if records is not None}

    @property
    def committed_offsets(self) -> dict[str, dict[tuple[str, int], int]]:
        """The offsets that transactions have committed: group → (topic, partition) → offset."""
        return self._engine.daemon.committed_offsets

    @property
    def fail_with(self) -> FailWith | None:
        return self._engine.daemon.fail_with

    @fail_with.setter
    def fail_with(self, function: FailWith | None) -> None:
        self._engine.daemon.fail_with = function

    @property
    def closed(self) -> bool:
        return self._engine.outbox.closed

    def hold(self) -> None:
        """Hold back the outcomes of records sent from now on, like a broker that does not answer."""
        self._engine.daemon.hold()

    def release(self) -> None:
        """Give all held records their outcomes, in order, and stop holding."""
        self._engine.daemon.release()
