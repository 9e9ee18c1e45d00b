"""Records that the application has handed over, until their outcomes: submissions, futures, failures.

Callers and the io thread share it. Each step on shared state is whole under the GIL.
"""
