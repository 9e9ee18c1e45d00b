"""The ``kafka-sidecar`` command: one file a command, each a thin front of another room.

Above all other rooms: nothing imports it. Heavy imports stand inside the commands, so that --help is quick.
"""
