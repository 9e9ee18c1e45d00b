"""What stub and daemon agree on: messages, field orders, outcome bytes, error codes, the run directory.

The only room of the stub, with ``zmtp``, that the daemon imports.
"""
