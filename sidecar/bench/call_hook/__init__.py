"""The folder that ``sidecar.bench.steps`` puts on a daemon's PYTHONPATH, so that its worker counts its calls.

Nothing imports it by this name; Python finds ``sitecustomize`` in it.
"""
