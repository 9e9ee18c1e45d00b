"""The parent process: supervises workers, distributes metadata, admits clients, and takes over from another daemon.

No record passes through it. It must not import the kernel or a worker's code, so that no fault there can end it.
"""
