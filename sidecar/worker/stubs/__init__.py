"""A worker's side of the stubs: frames in, journal, messages out. It knows topics and outcomes.

It must not touch brokers: accepted entries go to a topic's queue.
"""
