"""The configuration: settings, their rules, the loader, and what a reload may change.

Rules need no I/O; the loader reads files and the environment.
"""
