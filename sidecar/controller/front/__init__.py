"""Who may ask the daemon: the control endpoint, the HTTP port, listeners, orders.

A request is checked here before anything acts on it.
"""
