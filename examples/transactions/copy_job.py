"""Copy job: read records, change them, write them to another topic; each input record is in the output once.

``python copy_job.py BOOTSTRAP_SERVERS FROM TO`` runs until nothing has come for 5 s. Kill it at any moment and run it
again: what it wrote and how far it had read are one transaction, so no record is lost or doubled for a reader with
``isolation.level=read_committed``.
"""

import sys

from confluent_kafka import Consumer

from client_stub import Producer

AT_A_TIME = 500


def copy(bootstrap_servers: str, source: str, target: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"copy-{source}",
            "enable.auto.commit": False,  # the transaction commits the offsets
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    copied = 0
    with Producer(transactional_id=f"copy-{source}-to-{target}") as producer:
        while messages := consumer.consume(AT_A_TIME, timeout=5.0):
            with producer.transaction(consumer):
                for message in messages:
                    if message.error():
                        raise RuntimeError(message.error())
                    producer.send(target, message.value().upper(), key=message.key())
            copied += len(messages)
    consumer.close()
    return copied


if __name__ == "__main__":
    print(copy(*sys.argv[1:4]), "records copied")
