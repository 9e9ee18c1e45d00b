"""A worker process: runs the core over real clients, real brokers and its slot of the segment.

The shell that holds sockets and clocks. It must not touch the controller, which it hears by messages only, nor the CLI.
Five rooms (stubs, topics, brokers, fates, adoption) that build.py wires.
"""
