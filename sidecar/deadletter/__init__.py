"""Records that failed while nobody listened: the spool of letters, replay, and salvage from a segment without a daemon.

Reads the segment, writes files. No sockets and no loop; it knows neither workers nor the controller.
"""
