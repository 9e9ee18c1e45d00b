"""Links to brokers: connect, log in, send and receive.

The core decides what is sent; a link carries bytes and reports its end.
"""
