"""SASL with brokers: mechanisms, the handshake, re-authentication, the refresh of tokens.

Sans-IO: no sockets, loops or clocks. Nothing here is imported unless security.protocol asks for SASL.
"""
