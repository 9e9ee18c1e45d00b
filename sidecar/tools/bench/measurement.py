"""Numbers of the bench: several runs of one quantity, their median and spread, and the promise about them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """The ``values`` of one quantity, one per run. ``section`` and ``what`` place it in the report."""

    section: str
    what: str
    side: str
    unit: str
    values: tuple[float, ...]
    at: float | None = None
    """Its position on the x-axis of its section's plot, if it has one."""

    @property
    def curve(self) -> str:
        """``what`` without the point it was taken at."""
        return self.what.rpartition(" at ")[0] or self.what

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> str:
        return f"{short(min(self.values))}-{short(max(self.values))}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"median": self.median}


@dataclass(frozen=True)
class Ratio:
    """One comparison: the medians of two measurements, and whether the promise, if one was made, held in this run."""

    what: str
    ours: float
    theirs: float
    at_least: float | None = None
    at_most: float | None = None
    runs: int = 0

    @property
    def value(self) -> float:
        return self.ours / self.theirs if self.theirs else float("inf")

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} ×"
        return f"≤ {self.at_most:g} ×" if self.at_most is not None else ""

    @property
    def is_reached(self) -> bool | None:
        """Whether the promise held; None without a promise."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"value": self.value, "reached": self.is_reached}


@dataclass(frozen=True)
class Failure:
    """A part that ended early, and its error. Its results until then are among the measurements."""

    part: str
    error: str


@dataclass
class Results:
    """Everything one bench run found. ``notes``: sentences that a reader of the numbers needs."""

    measurements: list[Measurement] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def add(
        self,
        section: str,
        what: str,
        side: str,
        unit: str,
        values: Sequence[float],
        *,
        at: float | None = None,
    ) -> None:
        """Add ``values`` of a quantity. A part adds each round's values as it ends, so that a later round may fail."""
        for position, each in enumerate(self.measurements):
            if (each.section, each.what, each.side) == (section, what, side):
                self.measurements[position] = replace(each, values=each.values + tuple(values))
                return
        self.measurements.append(Measurement(section, what, side, unit, tuple(values), at))

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def find(self, section: str, what: str, side: str) -> Measurement | None:
        return next(
            (
                each
                for each in self.measurements
                if (each.section, each.what, each.side) == (section, what, side)
            ),
            None,
        )

    def compare(
        self,
        what: str,
        ours: tuple[str, str, str],
        theirs: tuple[str, str, str],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Note the ratio of two measurements' medians, if this run has both, with or without a promise."""
        found, other = self.find(*ours), self.find(*theirs)
        if found is not None and other is not None:
            self.ratios.append(
                Ratio(
                    what,
                    found.median,
                    other.median,
                    at_least,
                    at_most,
                    min(len(found.values), len(other.values)),
                )
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "machine": dict(self.machine),
            "notes": self.notes,
            "failures": [asdict(each) for each in self.failures],
            "ratios": [each.to_dict() for each in self.ratios],
            "measurements": [each.to_dict() for each in self.measurements],
        }


def short(value: float) -> str:
    """Three significant digits, thousands separated: 1,240,000 and 0.372."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"
