"""Kafka's wire protocol, bytes in and messages out: requests, responses, versions, connection states.

Sans-IO: no sockets, no event loop and no clock; times are arguments.
"""
