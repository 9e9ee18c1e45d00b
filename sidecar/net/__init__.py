"""Sockets on an event loop: broker connections, the endpoint for clients, the channel between controller and worker.

It moves bytes and decides nothing about records. It knows neither the core nor the segment, and does not use zmq.
"""
