"""docs/wire.md, printed from the contract: ``python -m sidecar.tools.pages.wire > docs/wire.md``."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from client_stub.contract import wire
from client_stub.contract.error_codes import ERROR_CODES

_HEAD: Final = """# Numbers and fields of the wire

For authors of a client in another language, with [protocol.md](protocol.md), which says when each message is sent and
what it promises. Fields in brackets may be absent. `examples/conversation.txt` has a whole conversation in hex.

*This page is printed by `python -m sidecar.tools.pages.wire` from `client_stub/contract/wire.py`, and a test compares
them.*
"""
_SIZES: Final = (
    ("PROTOCOL_VERSION", "the version in HELLO and ATTACH"),
    ("RELATIVE_ENDPOINTS", "the bit of HELLO's flags"),
    ("CLIENT_ID_BYTES", "a client id"),
    ("SECRET_BYTES", "a secret"),
    ("CLIENT_NAME_BYTES_MAX", "a client name at most, in bytes of UTF-8"),
    ("TRANSACTIONAL_ID_BYTES_MAX", "a transactional id at most, in bytes of UTF-8"),
    ("OFFSET_METADATA_BYTES_MAX", "the metadata of an offset at most, in bytes of UTF-8"),
    ("GROUP_BYTES_MAX", "the id, member and instance of a group at most, together, in bytes of UTF-8"),
    ("STAGE_BIT", "the bit of SUBMIT's transaction that says that it is a stage"),
    ("STAGE_OWNER_BYTES_MAX", "a stage's owner at most, in bytes of UTF-8"),
    ("STAGE_TOKEN_BYTES_MAX", "a token at most"),
    ("TOPIC_BYTES_MAX", "a topic at most"),
    ("SUBMISSION_BYTES_MAX", "a submission's payload at most, unless it is one record"),
    ("SUBMISSION_RECORDS_MAX", "records of a submission at most"),
    ("PARTITIONER_SHIFT", "how far a partitioner's number is shifted in the flags of SUBMIT"),
)


def _kinds() -> Iterator[tuple[int, str, str, str]]:
    """(number, name, sender, fields) of each kind, from the comments of the class."""
    above: list[str] = []
    for line in inspect.getsource(wire.Kind).splitlines()[2:]:
        found = re.match(r"\s+([A-Z_]+) = (?:\((?=$))?(\d+)?(?:\s+# (.*))?$", line)
        comment = re.match(r"\s+(?:\d+\s+)?# (.*)$", line)
        if found is not None and not line.rstrip().endswith("("):
            words = " ".join([*above, found[3] or ""]).strip()
            yield int(wire.Kind[found[1]]), found[1], *_parted(words)
            above = []
        elif found is not None:
            above = [found[1]]
        elif comment is not None and above and above[0] in wire.Kind.__members__:
            yield int(wire.Kind[above[0]]), above[0], *_parted(comment[1])
            above = []
        elif comment is not None and not comment[1].endswith("."):
            above.append(comment[1])
        elif line.strip() != ")":
            above = []


def _parted(words: str) -> tuple[str, str]:
    sender, colon, fields = words.partition(": ")
    return (sender, fields) if colon else ("both", words)


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    heads = list(heads)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _numbers(kind: type[IntEnum]) -> str:
    return ", ".join(f"{each.value} {each.name}" for each in kind)


def _outcome_layout() -> str:
    source = inspect.getsource(wire)
    found = re.search(r"((?:^#[^\n]*\n)+)OUTCOME: Final", source, re.MULTILINE)
    assert found is not None
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in found[1].splitlines()).strip("\n")


def wire_markdown() -> str:
    """The page."""
    kinds = [(number, f"`{name}`", sender, fields) for number, name, sender, fields in _kinds()]
    codes = [(f"{code:#x}", f"`{code.name}`", ERROR_CODES[code].text) for code in wire.LocalCode]
    partitioners = ", ".join(f"{number} {name}" for number, name in enumerate(wire.PARTITIONERS, 1))
    return "\n".join(
        (
            _HEAD,
            "## Kinds\n",
            _table(("number", "kind", "sender", "fields after the kind"), kinds),
            "## Numbers\n",
            f"- Formats: {_numbers(wire.Format)}. Flags of SUBMIT: {_numbers(wire.SubmitFlag)}.",
            f"- Outcomes: {_numbers(wire.OutcomeKind)}. Shapes: {_numbers(wire.Shape)}.",
            f"- Persistence: {_numbers(wire.Persistence)}.",
            f"- Parts of TXN: {_numbers(wire.TxnPart)}. Its effects: {_numbers(wire.TxnEffect)}.",
            f"- Parts of STAGE: {_numbers(wire.StagePart)}. Its effects are those of TXN.",
            textwrap.fill(f"- Partitioners: 0 the daemon's own, {partitioners}.", 120, subsequent_indent="  ")
            + "\n",
            _table(("name", "value", "of what"), ((f"`{n}`", getattr(wire, n), of) for n, of in _SIZES)),
            "## An outcome\n",
            f"```\n{_outcome_layout()}\n```\n",
            "## Codes of outcomes\n",
            "Below 1000 they are Kafka's.\n",
            _table(("code", "name", "meaning"), codes),
        )
    )


if __name__ == "__main__":
    print(wire_markdown(), end="")
