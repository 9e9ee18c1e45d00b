"""The cluster's metadata: the controller's Metadata, immutable snapshots, their differences, a worker's cache.

Sans-IO: no sockets, no event loop and no clock; times are arguments.
"""
