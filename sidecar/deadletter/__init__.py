"""Failed records without a client: the spool of letters, replay, and salvage from a segment without a daemon.

It reads the segment and writes files. No sockets and no event loop; it knows neither workers nor the controller.
"""
