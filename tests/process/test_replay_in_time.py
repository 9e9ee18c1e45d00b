"""Goal: a replay that runs out of time has done what it has done: nothing of it is sent again, nothing is lost."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

import msgpack
import pytest

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.deadletter.letters import Undelivered
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import spool_files
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from tests.kernel.oracle.reference_bytes import murmur2
from tests.kernel.oracle.reference_partitioner import fnv1a

pytestmark = [pytest.mark.process]

COUNT = 8


def test_a_key_goes_where_its_sender_s_partitioner_puts_it(start_daemon: StartDaemon, tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    writer = SpoolWriter(folder, "w", max_bytes=1 << 20, drop_oldest=False)
    keys = [b"key-%d" % number for number in range(30)]
    for number, partitioner in enumerate((None, "consistent_random", "fnv1a")):
        writer.append(
            [
                Undelivered(
                    name=blake2b(b"%d" % number, digest_size=16).digest(),
                    sender="",
                    client_name="",
                    pid=0,
                    topic="t",
                    partition=None,
                    base_timestamp_ms=1_700_000_000_000,
                    payload=b"".join(msgpack.packb([key, (partitioner or "").encode()]) for key in keys),
                    numbers=range(len(keys)),
                    indexes=list(range(len(keys))),
                    code=int(LocalCode.METADATA_TIMEOUT),
                    text="",
                    persistence=Persistence.NOT_PERSISTED,
                    partitioner=partitioner,
                )
            ]
        )
    writer.close()
    with FakeBroker({"t": 17}) as kafka:
        daemon = start_daemon(kafka.bootstrap_servers, settings={"dead_letters.path": folder})
        done = daemon.command("replay")
        assert done.returncode == 0, done.stdout + done.stderr
        found = {(record.value, record.key): record.partition for record in kafka.records("t")}
    for key in keys:
        assert found[b"consistent_random", key] == crc32(key) % 17
        assert found[b"fnv1a", key] == fnv1a(key) % 17
        assert found[b"", key] == (murmur2(key) & 0x7FFFFFFF) % 17


def letters(folder: Path) -> None:
    """One file, one chunk: records for two topics in turns."""
    writer = SpoolWriter(folder, "w", max_bytes=1 << 20, drop_oldest=False)
    groups = [
        Undelivered(
            name=blake2b(b"%d" % number, digest_size=16).digest(),
            sender="",
            client_name="",
            pid=0,
            topic="slow" if number % 2 else "quick",
            partition=None,
            base_timestamp_ms=1_700_000_000_000 + number,
            payload=msgpack.packb([None, b"%d" % number]),
            numbers=[0],
            indexes=[0],
            code=int(LocalCode.METADATA_TIMEOUT),
            text="",
            persistence=Persistence.NOT_PERSISTED,
        )
        for number in range(2 * COUNT)
    ]
    writer.append(groups)
    writer.close()


def test_letters_delivered_before_the_timeout_are_not_sent_again(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """One topic's broker answers and the other's does not: the answered half leaves the spool, the rest stays."""
    folder = tmp_path / "letters"
    letters(folder)
    with FakeBroker({"quick": 1, "slow": 1}, nodes=2) as kafka:
        kafka.move_leader("quick", 0, 1)
        kafka.move_leader("slow", 0, 2)
        daemon = start_daemon(
            kafka.bootstrap_servers,
            settings={"dead_letters.path": folder, "daemon.workers": 1, "linger.ms": 0},
        )
        held = kafka.add(on(Api.PRODUCE, topic="slow", times=1).hold())
        late = daemon.command("replay", "--timeout", "2")
        assert late.returncode == 75, late.stdout + late.stderr
        assert f"{COUNT} letters were delivered, then outcomes did not come in time" in late.stderr
        held.release()
        done = daemon.command("replay")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"An earlier replay ended with {COUNT} letters in flight" in done.stdout
        assert f"{COUNT} were there twice or had been delivered" in done.stdout
        assert spool_files(folder) == []
        assert daemon.stop() == 0, daemon.log_tail()
        found = {
            topic: Counter(record.value for record in kafka.records(topic)) for topic in ("quick", "slow")
        }
    evens = [b"%d" % number for number in range(0, 2 * COUNT, 2)]
    odds = [b"%d" % number for number in range(1, 2 * COUNT, 2)]
    assert found["quick"] == Counter(evens), "each once"
    assert set(found["slow"]) == set(odds) and max(found["slow"].values()) <= 2, (
        "said to be in doubt, and not lost"
    )
