"""Kafka's wire protocol as bytes in, messages out: requests, responses, versions, connection states.

Sans-IO: no sockets, no loop and no clock; times are arguments.
"""
