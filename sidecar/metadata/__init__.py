"""Knowledge of the cluster: the controller's Metadata, immutable snapshots, their differences, a worker's cache.

Sans-IO: no sockets, no loop and no clock; times are arguments.
"""
