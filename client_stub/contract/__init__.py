"""What stub and daemon agree on: messages, field orders, outcome bytes, error codes, the run directory.

With ``zmtp`` and ``native.hot`` it is all of the stub that the daemon imports.
"""
