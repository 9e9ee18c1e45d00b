"""The ``kafka-sidecar`` command: one file per command, each a thin layer over another room.

No other room imports it. Heavy imports are inside the commands, so that --help is fast.
"""
