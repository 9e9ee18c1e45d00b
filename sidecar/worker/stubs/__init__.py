"""A worker's dealings with stubs: frames in, journal, messages out. Knows topics and fates.

It must not touch brokers: what is accepted goes to a topic's queue.
"""
