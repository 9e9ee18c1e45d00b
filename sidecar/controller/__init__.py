"""The parent process: supervises workers, pulls and pushes metadata, admits clients, takes over from another daemon.

No record passes it. It must not touch the core or a worker's code, so that a fault there cannot end it.
"""
