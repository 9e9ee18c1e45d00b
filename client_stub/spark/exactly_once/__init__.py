"""Exactly-once: one Kafka transaction for each micro-batch.

Tasks fill stages, and the driver puts those that Spark has chosen, and one commit record, into one transaction. So a
batch is in its topics whole or not at all. ``decision.py`` and ``commit_record.py`` decide and touch nothing;
``commit.py`` and ``staging.py`` call the stub.
"""
