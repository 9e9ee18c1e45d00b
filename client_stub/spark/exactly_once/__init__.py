"""Exactly-once: one Kafka transaction for each micro-batch. What decides about a batch, and touches nothing; the sink
does not call it yet.
"""
