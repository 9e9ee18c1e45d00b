"""Note: a sentence for an operator, with the page of docs/runbooks that belongs to it.

The books of this room make them, on the controller's loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

RUNBOOKS: Final = "https://github.com/kafka-sidecar/kafka-sidecar/blob/main/docs/runbooks"


class Runbook(StrEnum):
    """Pages by their names, which are those of the alerts."""

    NONE = ""
    BROKER_DOWN = "KafkaSidecarBrokerDown"
    BUG = "KafkaSidecarBug"
    CERTIFICATE_ENDS = "KafkaSidecarCertificateEnds"
    CLIENTS_HELD = "KafkaSidecarClientsHeld"
    DEAD_LETTERS = "KafkaSidecarDeadLetters"
    DISK_REFUSES = "KafkaSidecarDiskRefuses"
    DOWN = "KafkaSidecarDown"
    KAFKA_UNREACHABLE = "KafkaSidecarKafkaUnreachable"
    POOL_FULL = "KafkaSidecarPoolFull"
    RECORDS_FAILED = "KafkaSidecarRecordsFailed"
    RECORDS_WAIT = "KafkaSidecarRecordsWait"
    STAGES_WAIT = "KafkaSidecarStagesWait"
    THROTTLED = "KafkaSidecarThrottled"
    WORKERS_DIE = "KafkaSidecarWorkersDie"

    @property
    def address(self) -> str:
        return f"{RUNBOOKS}/{self}.md" if self else ""


class Note(str):
    """One thing that an operator should know."""

    runbook: Runbook

    def __new__(cls, text: str, runbook: Runbook = Runbook.NONE) -> Note:
        note = super().__new__(cls, text)
        note.runbook = runbook
        return note


def to_rows(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """The rows for the page."""
    return [{"text": f"{note[:1].upper()}{note[1:]}", "runbook": note.runbook.address} for note in notes]
