"""Tools around the product: bench, chaos, demo, the test kit, and the generators of pages.

The daemon imports nothing of it, but for a worker that a test has armed.
"""
