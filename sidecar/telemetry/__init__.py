"""/metrics, /healthz and the page, made from the segment's counters.

It only reads: it changes nothing in the segment and sends nothing to workers.
"""
