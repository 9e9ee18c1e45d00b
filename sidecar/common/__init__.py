"""Shared by all packages of the daemon: settings, error codes, control messages.

It knows no other package of the daemon. Only ``clock.py`` reads a clock, and nothing here opens a socket or runs a
loop.
"""
