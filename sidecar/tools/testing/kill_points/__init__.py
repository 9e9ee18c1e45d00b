"""Places at which a worker may be made to die on purpose. For tests only; a worker without orders loads none of it.

A point is a comment in the code, ``# kill point: NAME``, so it costs nothing there (as with etcd's gofail). Only
``worker/main.py`` and test kits import this room. It knows the kernel, to read the records that an order names.
"""
