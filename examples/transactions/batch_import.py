"""Batch import: the lines of a file are in the topic whole, or not at all.

``python batch_import.py FILE TOPIC``. A line that cannot be sent ends the import, and readers with
``isolation.level=read_committed`` see nothing of it.
"""

import sys
from itertools import islice
from pathlib import Path

from client_stub import Producer

AT_A_TIME = 10_000


def load(file: str, topic: str) -> int:
    count = 0
    with (
        Producer(transactional_id=f"import-{Path(file).name}", transaction_timeout_ms=600_000) as producer,
        Path(file).open("rb") as lines,
        producer.transaction(),
    ):
        while rows := [(None, line.rstrip(b"\n")) for line in islice(lines, AT_A_TIME)]:
            producer.send_many(topic, rows)
            count += len(rows)
    return count


if __name__ == "__main__":
    print(load(*sys.argv[1:3]), "lines imported")
