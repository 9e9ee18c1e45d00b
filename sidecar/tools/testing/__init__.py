"""Real and simulated Kafka for tests, demo and bench; nothing here runs in a production daemon.

No other part of the product imports it, and it knows no tool that is built on it.
"""
