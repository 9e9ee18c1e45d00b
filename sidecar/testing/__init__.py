"""Real and simulated Kafka for tests, demo and bench; nothing here runs in a production daemon."""
