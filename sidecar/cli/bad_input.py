"""BadInput, the error of a record of a file that cannot be used, and the checks of columns that raise it."""

from __future__ import annotations

from collections.abc import Iterable


class BadInput(ValueError):
    """The text names the file, the row and the fault."""


class Refused:
    """Instead of a value that cannot be sent; ``why`` continues "column x ..."."""

    def __init__(self, why: str) -> None:
        self.why = why


def check_names(columns: Iterable[str], name: str, inside: str = "") -> None:
    """Raises BadInput for two columns of one name, at the top or inside of the column ``inside``."""
    seen: set[str] = set()
    for column in columns:
        if column in seen:
            where = (
                f'two columns are called "{column}"'
                if not inside
                else f'column "{inside}" has two "{column}"'
            )
            raise BadInput(f"{name}: {where}, and a JSON object would keep only one of them; rename one.")
        seen.add(column)


def check_key(columns: Iterable[str], key: str | None, name: str) -> None:
    """Raises BadInput unless ``key`` is one of ``columns``."""
    if key is not None and key not in columns:
        raise BadInput(f'{name}: has no column "{key}" for the key; columns are {", ".join(columns)}.')
