"""PageReturns: gives pages of ended entries back to the pool, and lets the streams continue that waited for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sidecar.producer.partition_schedule import PartitionSchedule
    from sidecar.shm.buffer_pool import BufferPool
    from sidecar.worker.host import Host
    from sidecar.worker.outcomes.releases import Releases
    from sidecar.worker.stubs.group_commit import GroupCommit
    from sidecar.worker.stubs.holds import Holds
    from sidecar.worker.stubs.shares import Shares
    from sidecar.worker.topics.topics import Topics

IDLE_CHAIN_MS: Final = 1_000.0
"""An empty chain keeps its last page for this time in ms after its last use."""


class PageReturns:
    """Belongs to the worker's loop. The driver asks it after entries have ended, housekeeping in each round."""

    def __init__(
        self,
        *,
        host: Host,
        pool: BufferPool,
        schedule: PartitionSchedule,
        topics: Topics,
        shares: Shares,
        holds: Holds,
        commit: GroupCommit | None,
        releases: Releases,
    ) -> None:
        self._host = host
        self._pool = pool
        self._schedule = schedule
        self._topics = topics
        self._shares = shares
        self._holds = holds
        self._commit = commit
        self.releases = releases

    def give_back(self, now_ms: float) -> None:
        """Give back the pages before the first live entry of each chain in which an entry has ended."""
        for chain in self.releases.take_released_chains():
            queue = self._topics.by_chain[chain.chain_id]
            queue.last_settled_ms = now_ms
            if self._commit is not None:
                self._commit.entries_ended(chain, queue.topic)
            pages = chain.release_pages()
            if pages:
                self._give(pages)
            if pages or queue.stalled_bytes or (queue.held_bytes and not chain.live_entries):
                self._shares.count(queue, now_ms)
        if self._shares.check_is_due:
            self._check_held(now_ms)

    def release_idle(self, now_ms: float) -> None:
        """Give back the pages of chains with nothing live, so that an idle worker leaves the pool whole."""
        for queue in self._topics:
            chain = queue.chain
            if chain.page_count and not chain.live_entries and now_ms - queue.last_used_ms > IDLE_CHAIN_MS:
                pages = chain.release_idle()
                if pages:
                    self._give(pages)
                    self._shares.count(queue, now_ms)

    def count_shares(self, now_ms: float) -> None:
        """Count the shares of all topics again: time has passed, or topics have stalled or continue."""
        self._shares.count_all(now_ms)
        if self._shares.check_is_due:
            self._check_held(now_ms)

    def serve_waiters(self, now_ms: float) -> None:
        """Give free pages to the streams that wait for them."""
        for stream, pages in self._pool.poll(now_ms):
            self._holds.pool_granted(stream, pages, now_ms)
        self._schedule.set_exhausted(self._pool.waiting_count > 0, now_ms)

    def _check_held(self, now_ms: float) -> None:
        """Let streams that were held by a share continue, here and in other workers, once enough pages were given
        back.
        """
        self._shares.checked()
        if self._holds.share_held:
            self._holds.shares_freed(now_ms)
        if self._shares.others_wait():
            self._host.wake_workers()

    def _give(self, pages: list[int]) -> None:
        # kill point: pages.released
        self._pool.give(pages)
