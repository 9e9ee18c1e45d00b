"""Shared by every room: settings, error codes, control messages.

Knows no other room. Only ``clock.py`` reads a clock, and nothing here opens a socket or runs a loop.
"""
