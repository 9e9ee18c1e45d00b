"""Doctor: the checks of ``kafka-sidecar doctor``, step by step, with the daemon's own code.

It changes nothing, and the daemon must not use it.
"""
