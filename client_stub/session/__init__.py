"""A client's session with its worker: how it gets one, what it sends, what it was told. Sans-IO.

Only the io thread uses it.
"""
