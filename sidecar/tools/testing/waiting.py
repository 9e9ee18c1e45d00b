"""Wait for a condition with a deadline; tests and demo poll nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ConditionTimeout(AssertionError):
    """The condition did not come true in time; the message names the condition and the last state."""


def wait_until(
    probe: Callable[[], T | None],
    what: str,
    *,
    timeout_s: float = 30.0,
    interval_s: float = 0.05,
    describe: Callable[[], str] | None = None,
) -> T:
    """Call ``probe`` until it returns a true value, and return that value.

    ``describe`` is called once after the deadline; its text is added to the error. Raises ConditionTimeout (an
    AssertionError) after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() >= deadline:
            detail = f" {describe()}" if describe is not None else ""
            raise ConditionTimeout(f"after {timeout_s:g} s still waiting for {what}.{detail}")
        time.sleep(interval_s)
