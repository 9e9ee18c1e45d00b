"""The shared segment: its layout, pool, chains, descriptors, client rows, counters, and their recovery.

It knows the kernel and common. No sockets and no event loop: the same code reads a dead daemon's segment.
"""
