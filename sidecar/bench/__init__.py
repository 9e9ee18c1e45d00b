"""Speed and memory on a real Kafka, against confluent-kafka: ``make bench``. Never part of the tests."""
