"""Pool import: many files, each read by a process of a pool, are in the topic whole, or not at all.

``python pool_import.py TOPIC FILE...``. Each process puts the lines of its file into a *stage*, which waits at the
daemon; the parent includes all stages in one transaction. A file that cannot be sent ends the import, and readers with
``isolation.level=read_committed`` see nothing of any file.
"""

import sys
from functools import partial
from itertools import islice
from multiprocessing import Pool
from pathlib import Path

from client_stub import Producer

AT_A_TIME = 10_000


def import_file(topic: str, run: str, number_and_file: tuple[int, str]) -> bytes:
    """In a process of the pool. Returns the token of the file's stage."""
    number, file = number_and_file
    with (
        Producer() as producer,
        Path(file).open("rb") as lines,
        producer.stage(f"import-{topic}", number, owner=run) as stage,
    ):
        while rows := [(None, line.rstrip(b"\n")) for line in islice(lines, AT_A_TIME)]:
            stage.send_many(topic, rows)
        return stage.seal()


def load(topic: str, files: list[str], processes: int = 4) -> int:
    with Producer(transactional_id=f"import-{topic}", transaction_timeout_ms=600_000) as producer:
        producer.init_transactions()
        producer.drop_stages(up_to=len(files))  # those of a run that was killed
        with Pool(processes) as pool, producer.transaction():
            work = partial(import_file, topic, "run-1")
            inclusion = producer.include(pool.map(work, enumerate(files, start=1)))
    return inclusion.rows


if __name__ == "__main__":
    print(load(sys.argv[1], sys.argv[2:]), "lines imported")
