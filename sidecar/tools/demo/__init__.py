"""The main use on real input, and a judge that shares no code with us: ``kafka-sidecar demo``.

No other part of the product imports it.
"""
