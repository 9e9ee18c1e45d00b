"""The shared segment: its layout, the pool, chains, descriptors, client rows, counters, and what a successor reads.

Knows the kernel and common. No sockets and no loop: a dead daemon's segment is read by the same code.
"""
