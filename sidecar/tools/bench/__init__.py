"""Speed and memory on a real Kafka, against confluent-kafka: ``make bench``. Never part of the tests.

No other part of the product imports it, and it does not import the CLI.
"""
