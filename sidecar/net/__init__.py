"""Sockets in a loop: broker connections, the endpoint for clients, the channel between controller and worker.

Carries bytes and decides nothing about records: it knows neither the core, nor the segment, nor zmq.
"""
