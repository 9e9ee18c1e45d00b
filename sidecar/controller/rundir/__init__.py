"""The run directory and the segment: ownership, files, remains of a dead daemon, a predecessor.

Only what is ours by owner and lock is trusted, or removed.
"""
