"""ZMTP 3.1 as bytes in, messages out: frames, the NULL and CURVE mechanisms, keys. Sans-IO.

It knows nothing of Kafka.
"""
