"""State of a client at its worker: its session, streams and limits, and the topic queues that its streams use.

Plain state shared by the other rooms. It knows none of them, and must not touch sockets.
"""
