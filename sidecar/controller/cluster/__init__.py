"""Kafka as the controller sees it: metadata, its pushes to workers, topics, and tokens.

One process of a daemon asks Kafka for it, for all workers.
"""
