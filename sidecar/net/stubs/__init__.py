"""The sockets for clients: listening, accepting, and the limits for strangers.

It reads no message: the worker or the control endpoint does.
"""
