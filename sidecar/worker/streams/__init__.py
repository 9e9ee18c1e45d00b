"""State of a client at its worker: its session, its streams, the queues of topics that these lead into, its limits.

Plain state that the other rooms share; it knows none of them, and must not touch sockets.
"""
