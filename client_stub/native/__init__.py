"""The compiled part of the stub: packing, submissions, outcomes, callbacks, frames.

Each step on shared state is whole under the GIL; ``_native.pyx`` says why that is enough.
"""
