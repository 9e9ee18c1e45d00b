"""kafka-sidecar: one Kafka producer for all processes of a host. Docs begin in docs/index.md.

Each folder is a room. Its ``__init__`` says what it is and what it must not touch; test_layering.py holds it to that.
"""
