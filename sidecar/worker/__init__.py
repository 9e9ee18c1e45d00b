"""A worker process: runs the producer core for its clients, against the brokers, on one slot of the segment.

This package holds the sockets and clocks. It must touch neither the CLI nor the controller, with which it only
exchanges messages. It has five rooms of its own (stubs, topics, brokers, outcomes, adoption), wired by build.py.
"""
