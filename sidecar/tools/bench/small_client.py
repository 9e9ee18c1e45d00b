"""A process that imports one library, sends 100 records and prints its resident MB: ``SIDE TARGET TOPIC``.

It imports nothing else of the bench, so that only the library is measured.
"""

import sys


def resident_mb() -> float:
    """RssAnon + RssFile of this process, in MB (10^6 bytes)."""
    kilobytes = 0
    with open("/proc/self/status") as status:  # noqa: PTH123 (pathlib would be part of what is measured)
        for line in status:
            if line.startswith(("RssAnon:", "RssFile:")):
                kilobytes += int(line.split()[1])
    return kilobytes * 1024 / 1e6


def main() -> int:
    side, target, topic = sys.argv[1:]
    producer: object = None
    if side == "sidecar":
        from client_stub import Producer

        producer = ours = Producer(run_dir=target)
        for _ in range(100):
            ours.send(topic, value=b"x" * 100)
        ours.flush()
    elif side == "confluent":
        import confluent_kafka

        producer = theirs = confluent_kafka.Producer(
            {"bootstrap.servers": target, "enable.idempotence": True}
        )
        for _ in range(100):
            theirs.produce(topic, value=b"x" * 100)
        theirs.flush()
    print(resident_mb())
    return 0 if side == "none" or producer is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
