"""What is wrong with the format of a key or a value, for a fault of the file.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations


class Misfit(Exception):
    """The text says what is wrong. ``key``: what follows "value" or "key" in the name of the key of the file, or a key
    of [registry].
    """

    def __init__(self, key: str, what: str, todo: str, *, of_registry: bool = False) -> None:
        super().__init__(what)
        self.key = key
        self.todo = todo
        self.of_registry = of_registry
