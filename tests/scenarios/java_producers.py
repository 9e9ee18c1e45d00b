"""Kafka's own Java producer, with the face of ``client_stub.Producer`` as far as scenarios use it.

One JVM runs ``JavaProducers.java`` and takes one JSON object a line: as many producers as a run of the tests
wants, none of them paying for a start. It ends when its stdin does, so it does not outlive the tests.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from client_stub.errors import DeliveryTimeout, MetadataTimeout, SidecarError, error_for
from client_stub.record_metadata import RecordMetadata
from sidecar.tools.testing.kafka_jars import java_command, resolve_jars

SOURCE: Final = Path(__file__).with_name("JavaProducers.java")
START_S: Final = 120.0
ANSWER_S: Final = 20.0


class _NotTold:
    """Java does not tell whether a failed record may be in the log: what it did not say agrees with anything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 1


NOT_TOLD: Final = _NotTold()


def error_of(told: Mapping[str, Any]) -> SidecarError:
    """The error of ours that stands for Java's: by Kafka's code, its many TimeoutExceptions apart by their text."""
    text = str(told["text"])
    error: SidecarError
    if told["error"] == "TimeoutException" and "Expiring" in text:
        error = DeliveryTimeout(text, code=7, retriable=True)
    elif told["error"] == "TimeoutException" and "not present in metadata" in text:
        error = MetadataTimeout(text, code=7, retriable=True)
    else:
        error = error_for(int(told["code"]), text)
    error.persistence = NOT_TOLD  # type: ignore[assignment]
    return error


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


class JavaProducers:
    """The JVM. Thread-safe; use as a context manager."""

    def __init__(self) -> None:
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        self._process = subprocess.Popen(
            [java_command(), *options, "-cp", f"{resolve_jars()}/*", str(SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        runs: Future[dict[str, Any]] = Future()
        self._waiting: dict[int, Callable[[dict[str, Any]], None]] = {0: runs.set_result}
        self._numbers = count(1)
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True, name="java-producers").start()
        runs.result(START_S)

    def open(self, settings: Mapping[str, object]) -> JavaProducer:
        """A producer with Kafka's settings; raises SidecarError with Java's words for those it refuses."""
        return JavaProducer(self, next(self._numbers), settings)

    def tell(self, told: Callable[[dict[str, Any]], None], **command: object) -> None:
        """Have a command done; ``told`` gets the answer, in the reader's thread."""
        number = next(self._numbers)
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock:
            self._waiting[number] = told
            stdin.write(json.dumps({"number": number, **command}) + "\n")
            stdin.flush()

    def ask(self, timeout_s: float = ANSWER_S, **command: object) -> dict[str, Any]:
        """Have a command done and wait for its answer. Raises TimeoutError, or Java's error."""
        answer: Future[dict[str, Any]] = Future()
        self.tell(answer.set_result, **command)
        told = answer.result(timeout_s)
        if "error" in told:
            raise error_of(told)
        return told

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._lock:
                waiting = self._waiting.pop(told["number"], None)
            if waiting is not None:  # send() may raise and have the record's callback called besides
                waiting(told)

    def __enter__(self) -> JavaProducers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # it ends by itself
        self._process.wait(30)


class JavaProducer:
    """One KafkaProducer, for any number of threads."""

    def __init__(self, java: JavaProducers, number: int, settings: Mapping[str, object]) -> None:
        self._java = java
        self._number = number
        java.ask(do="open", producer=number, settings={name: str(value) for name, value in settings.items()})

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        thread: str,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[object, object], None] | None = None,
    ) -> Future[RecordMetadata]:
        """``thread`` names the caller's thread: what it sends goes one after the other."""
        delivery: Future[RecordMetadata] = Future()

        def told(outcome: dict[str, Any]) -> None:
            error = error_of(outcome) if "error" in outcome else None
            metadata = None
            if error is None:
                metadata = RecordMetadata(
                    topic, outcome["partition"], outcome["offset"], outcome["timestamp"]
                )
            if on_delivery is not None:
                on_delivery(error, metadata)
            if error is not None:
                delivery.set_exception(error)
            else:
                assert metadata is not None
                delivery.set_result(metadata)

        self._java.tell(
            told,
            do="send",
            producer=self._number,
            thread=f"{self._number} {thread}",
            topic=topic,
            value=_text(value),
            key=_text(key),
            headers=[(name, _text(header)) for name, header in headers],
            partition=partition,
            timestamp=timestamp_ms,
        )
        return delivery

    def metric(self, name: str) -> float:
        """One of Java's ``producer-metrics``, or ``accepted``: how many records send() has taken."""
        return float(self._java.ask(do="metrics", producer=self._number)[name])

    def close(self, timeout_s: float) -> None:
        milliseconds = int(timeout_s * 1000)
        self._java.ask(do="close", producer=self._number, thread=f"{self._number} close", ms=milliseconds)
