"""From an application's values to packed bytes: arguments, checks, serializers, columns, sizes.

It knows no daemon and no outcome: a value that cannot be sent is refused here.
"""
