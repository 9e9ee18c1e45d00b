"""Producers for an application's tests. ``client_stub.testing`` is their public name.

No daemon, thread or socket.
"""
