"""SASL towards brokers: mechanisms, the handshake, re-authentication, when a token is refreshed.

Sans-IO: no sockets, loops or clocks. Nothing here is imported unless security.protocol asks for SASL.
"""
