"""TLS of all connections: certificates, keys, contexts, and the words for their errors.

It opens no connection: a link or a port asks for its context.
"""
