"""A batch as the table of descriptors sees it, for tests without a producer."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from sidecar.kernel import BatchRecords
    from sidecar.shm.descriptors import DescriptorTable


@dataclass
class Sent:
    """The cursors and the count stand for ``records`` where there are none."""

    chain_id: int
    partition: int
    records: BatchRecords | None = None
    first_cursor: tuple[int, int] = (0, 0)
    last_cursor: tuple[int, int] = (0, 0)
    count: int = 0
    producer_id: int = 1
    epoch: int = 0
    base_sequence: int = 0

    def publish(self, table: DescriptorTable, published_ms: int = 0, pending_on: int | None = None) -> int:
        """Publish it, and return the index of its descriptor."""
        fields: dict[str, Any] = {**vars(self), "descriptor": -1, "lane": 0, "doubtful_parent": None}
        fields["was_in_doubt"] = False
        fields["chain"] = SimpleNamespace(chain_id=self.chain_id)
        fields["records"] = self.records or SimpleNamespace(**fields)
        batch = SimpleNamespace(**fields)
        assert table.publish((cast(Any, batch),), published_ms, pending_on)
        return cast(int, batch.descriptor)
