"""A client's session with its worker: how it gets one, what it sends, what it hears. Sans-IO.

Only the io thread uses it.
"""
