"""The main job on real input and a judge that shares no code with us: ``kafka-sidecar demo``.

Nothing of the product imports it.
"""
