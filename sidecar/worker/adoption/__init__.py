"""Takes over a slot: claims and reads it, and restores the state from which the worker continues.

Synchronous, before the worker's first turn. It must not touch sockets.
"""
