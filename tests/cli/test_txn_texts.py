"""Goal: `kafka-sidecar txn abort` says what became of the transaction."""

from __future__ import annotations

import pytest

from sidecar.cli.txn import _ended
from sidecar.common.model import ProducerIdAndEpoch
from sidecar.protocol.describe_transactions import COMMITTING, DescribedTransaction


@pytest.mark.parametrize(
    ("state", "partitions", "text"),
    [
        ("Ongoing", (("orders", 0),), "Aborted: the transaction of copy, in orders-0."),
        ("PrepareAbort", (("orders", 0),), "Aborted: the transaction of copy, in orders-0."),
        ("CompleteCommit", (), "No transaction of copy was open."),
        (
            COMMITTING,
            (("orders", 0),),
            "Not aborted: the transaction of copy, in orders-0, was being committed already, and is now.",
        ),
    ],
)
def test_abort_tells_what_became_of_the_transaction(
    state: str, partitions: tuple[tuple[str, int], ...], text: str
) -> None:
    found = DescribedTransaction(0, "copy", state, ProducerIdAndEpoch(1, 0), 60_000, 1, partitions)  # type: ignore[arg-type]
    assert _ended(found) == text
