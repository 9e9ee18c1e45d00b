"""Outbox: rows that a service wrote to a table of its own database go to Kafka, each once and in order.

``python outbox.py BOOTSTRAP_SERVERS DATABASE TOPIC`` sends the rows of ``outbox (id INTEGER PRIMARY KEY, key, value)``
that are not in Kafka yet. How far it came is a committed offset of a consumer group, in the same transaction as the
rows: whoever is killed when, no row is lost or sent twice.
"""

import sqlite3
import sys

from confluent_kafka import Consumer, TopicPartition

from client_stub import Producer

AT_A_TIME = 1_000


def relay(bootstrap_servers: str, database: str, topic: str) -> int:
    group = f"outbox-{topic}"
    sent = 0
    with Producer(transactional_id=group) as producer:
        producer.init_transactions()  # first: an earlier relay of this outbox can change nothing from here on
        place = TopicPartition(topic, 0)  # of the group; nobody reads with it
        consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
        last = max(0, consumer.committed([place], timeout=30)[0].offset)
        consumer.close()
        with sqlite3.connect(database) as connection:
            query = "SELECT id, key, value FROM outbox WHERE id > ? ORDER BY id LIMIT ?"
            while rows := connection.execute(query, (last, AT_A_TIME)).fetchall():
                last = rows[-1][0]
                with producer.transaction():
                    producer.send_many(topic, [(key, value) for _, key, value in rows])
                    producer.send_offsets_to_transaction({(topic, 0): last}, group)
                sent += len(rows)
    return sent


if __name__ == "__main__":
    print(relay(*sys.argv[1:4]), "rows sent")
