"""What all producers are built on.

No socket, no thread: those are in ``io``.
"""
