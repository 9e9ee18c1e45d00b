"""Topics in use: each with its chain, its partitioner, and the records that wait for metadata.

It must not touch sockets of stubs or brokers.
"""
