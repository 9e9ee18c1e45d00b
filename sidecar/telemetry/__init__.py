"""/metrics, /healthz and the page, made of the segment's counters.

It only reads: it changes nothing in the segment and asks no worker.
"""
