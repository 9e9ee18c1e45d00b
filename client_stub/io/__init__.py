"""The stub's only sockets and threads: the io thread, its transport, look-ups, and the end of a process.

The session decides; what is here only carries it out.
"""
