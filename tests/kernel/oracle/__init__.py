"""The kernel in plain Python: what the compiled one is compared with."""
