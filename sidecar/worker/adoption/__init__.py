"""A slot taken over: claimed, read, brought to the state from which a worker goes on.

Synchronous, before the first turn; it must not touch sockets.
"""
