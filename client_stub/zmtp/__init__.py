"""ZMTP 3.1 as bytes in, messages out: frames, mechanisms, a connection's parser, keys. Sans-IO.

It imports nothing of ours and knows nothing of Kafka, so it could be published alone. Sources: ZeroMQ's RFC 37/ZMTP,
25/ZMTP-CURVE and 26/CurveZMQ.
"""
