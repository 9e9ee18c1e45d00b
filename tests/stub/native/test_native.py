"""The compiled part: callbacks, futures, senders without a lock, calls on descriptors, and its types for checkers."""

from __future__ import annotations

import ast
import inspect
import operator
import os
import platform
import select
import shutil
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_stub import Producer, RecordMetadata, errors
from client_stub.native import _native
from client_stub.native.hot import RecordPacker, RecordsOutcome, SubmissionCore, run_callbacks
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon
from tests.stub.records.packed_records import RECORDS_MAX

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# --- submissions and callbacks --------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 99), st.integers(17, 60)), max_size=20)
)
def test_a_submission_notes_callbacks_and_timestamps(steps: list[tuple[int, int | None, int]]) -> None:
    known: list[Any] = [None, lambda error, metadata: 1, lambda error, metadata: 2]
    core = SubmissionCore()
    core.packer, core.free_bytes = RecordPacker(), 400
    taken: list[tuple[int, int | None]] = []
    room = 400
    for which, own, size in steps:
        index = core.append((None, b"v"), size, known[which], own)
        assert index == (len(taken) if size <= room else -1)
        if index >= 0:
            taken.append((which, own))
            room -= size
    assert (core.count, core.free_bytes) == (len(taken), room)
    callbacks = [known[which] for which, _ in taken]
    assert (core.callbacks or [core.callback] * core.count) == callbacks
    assert (core.callbacks is None) == (len(set(callbacks)) <= 1)
    assert (core.timestamps or {}) == {n: own for n, (_, own) in enumerate(taken) if own is not None}


@given(st.data())
def test_callbacks_get_the_outcome_of_their_record(data: st.DataObject) -> None:
    """In the order of the records, whichever of them are kept or raise."""
    count = data.draw(st.integers(1, RECORDS_MAX))
    mask = data.draw(st.integers(1, (1 << count) - 1) | st.just((1 << count) - 1))
    news = (mask & data.draw(st.integers(0, (1 << count) - 1))) or mask
    numbers = data.draw(st.none() | st.lists(st.none() | st.integers(0, 99), min_size=count, max_size=count))
    base = data.draw(st.sampled_from([-1, 0, 5, 1 << 40]))
    own = data.draw(st.none() | st.dictionaries(st.integers(0, count), st.integers(0, 1 << 50)))
    error = data.draw(st.sampled_from([None, errors.error_for(19)]))
    called: list[Any] = []
    kept: list[Any] = []

    def callback_of(number: int) -> Any:
        def callback(failure: Any, metadata: Any) -> None:
            called.append((number, failure, None if metadata is None else tuple(metadata)))
            if number % 3 == 0 and metadata is not None:
                kept.append((metadata, called[-1][2]))
            if number % 5 == 0:
                raise ValueError(number)

        return callback

    submission = SubmissionCore()
    if numbers is None:
        submission.callback = callback_of(7)
    else:
        submission.callbacks = [None if number is None else callback_of(number) for number in numbers]
    outcome = RecordsOutcome(mask, "t", 3, base, 1_000, own, error)
    run_callbacks(submission, outcome, news, lambda: called.append(repr(sys.exception())))
    expected: list[Any] = []
    members = [index for index in range(count) if mask >> index & 1]
    for rank, index in enumerate(members):
        number = 7 if numbers is None else numbers[index]
        if not news >> index & 1 or number is None:
            continue
        place = ("t", 3, base + rank if base >= 0 else -1, (own or {}).get(index, 1_000))
        expected.append((number, error, place if error is None else None))
        if number % 5 == 0:
            expected.append(repr(ValueError(number)))
    assert called == expected
    assert all(type(metadata) is RecordMetadata and tuple(metadata) == was for metadata, was in kept)


def test_a_callback_that_exits_ends_the_others_only_if_that_is_raised_again() -> None:
    told: list[Any] = []

    def leave(error: Any, metadata: Any) -> None:
        told.append(metadata.offset)
        raise SystemExit

    def failed() -> None:
        told.append("failed")
        if told[-2] == 1:
            raise  # noqa: PLE0704  of the handler that calls

    submission = SubmissionCore()
    submission.callback = leave
    with pytest.raises(SystemExit):
        run_callbacks(submission, RecordsOutcome(7, "t", 0, 0, 0, None, None), 7, failed)
    assert told == [0, "failed", 1, "failed"]


def test_metadata_that_callbacks_keep_does_not_change(producer: Producer) -> None:
    kept: list[RecordMetadata] = []

    def keep_some(error: Any, metadata: Any) -> None:
        if metadata.offset % 3:
            kept.append(metadata)

    for _ in range(1_000):
        producer.send("t", b"v", on_delivery=keep_some)
    producer.flush(10)
    assert [metadata.offset for metadata in kept] == [n for n in range(1_000) if n % 3]


# --- the whole ------------------------------------------------------------------------------------------


def described(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Each class and function of a file, and each method, by its path."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and not each.name.startswith("__"):
                    yield f"{node.name}.{each.name}", each


def test_the_types_are_those_of_the_compiled_part() -> None:
    """Names, parameters, defaults and, where the types have one, docstrings; and attributes of each class."""
    tree = ast.parse(Path(_native.__file__).parent.joinpath("_native.pyi").read_text())
    for path, node in described(tree):
        found = operator.attrgetter(path)(_native)
        said = ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            attributes = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]  # type: ignore[union-attr]
            assert [name for name in attributes if not hasattr(found, name)] == [], path
            continue
        assert said is None or said == inspect.getdoc(found), path
        if isinstance(found, types.GetSetDescriptorType):
            continue
        parameters = inspect.signature(found).parameters.values()
        names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        assert [each.name for each in parameters] == names, path
        defaults = [each.default for each in parameters if each.default is not inspect.Parameter.empty]
        given = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
        assert [ast.literal_eval(each) for each in given] == defaults, path


@pytest.mark.usefixtures("often_switched")
def test_senders_without_a_lock_lose_and_mix_nothing(producer: Producer, daemon: FakeDaemon) -> None:
    """Plain records, full ones, send_many() and own callbacks, from many threads while the io thread seals."""
    told: list[list[tuple[bytes, int]]] = [[] for _ in range(6)]
    futures: list[list[tuple[bytes, Any]]] = [[] for _ in range(6)]

    def run(number: int) -> None:
        for n in range(1_500):
            value = b"%d-%d" % (number, n)

            def own(error: Any, metadata: Any, value: bytes = value) -> None:
                told[number].append((value, metadata.offset))

            if n % 50 == 0:
                producer.send_many("t", [(None, value)], on_delivery=own)
            elif n % 7 == 0:
                futures[number].append(
                    (value, producer.send("t", value, timestamp_ms=n, headers=[("h", b"x")], on_delivery=own))
                )
            else:
                futures[number].append((value, producer.send("t", value, on_delivery=own)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(30)
    arrived = [bytes(record[1]) for submit in daemon.received for record in submit.records]
    assert len(arrived) == 6 * 1_500
    for number in range(6):
        values = [b"%d-%d" % (number, n) for n in range(1_500)]
        assert [value for value in arrived if value.startswith(b"%d-" % number)] == values
        assert [value for value, _ in told[number]] == values
        assert all(arrived[offset] == value for value, offset in told[number])
        assert all(arrived[future.result(1).offset] == value for value, future in futures[number])
        assert all(
            future.result(1).timestamp_ms == int(value.split(b"-")[1])
            for value, future in futures[number]
            if int(value.split(b"-")[1]) % 7 == 0
        )


def test_the_room_of_a_submission_is_kept_by_senders_without_a_lock(
    producer: Producer, daemon: FakeDaemon
) -> None:
    producer.send("t", b"first").result(10)
    daemon.stop()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    for _ in range(70_000):
        producer.send("t")
    pending = producer._engine.outbox.pending
    eventually(lambda: sum(submission.count for submission in list(pending)) == 70_000)
    assert len(pending) >= 2, "more when a busy machine takes long: a submission is closed after a second"
    assert max(submission.count for submission in pending) <= 65_535


def test_a_large_record_is_measured_though_there_is_room(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir, limits={"max_request_size": 100_000})
    producer = Producer(run_dir)
    producer.send("t", b"first").result(10)
    daemon.stop()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    producer.send("t", b"opens a submission")
    with pytest.raises(errors.RecordTooLarge):
        producer.send("t", bytes(200_000))
    pending = producer._engine.outbox.pending
    eventually(lambda: sum(submission.count for submission in list(pending)) == 1)
    producer.close(0)


def test_calls_on_descriptors_say_what_happened() -> None:
    waker = os.eventfd(0, os.EFD_NONBLOCK)
    _native.write_wake(waker)
    _native.write_wake(waker)
    _native.clear_wakes(waker)
    assert not select.select([waker], [], [], 0)[0]
    _native.clear_wakes(waker)  # after a wake-up that another reader has taken
    os.close(waker)
    for call in (_native.write_wake, _native.clear_wakes):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call(waker)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        room = bytearray(8)
        with pytest.raises(BlockingIOError):
            _native.receive(near.fileno(), memoryview(room))
        far.send(b"news")
        assert _native.receive(near.fileno(), memoryview(room)[2:]) == 4
        assert room == b"\0\0news\0\0"
        with pytest.raises((BufferError, TypeError)):
            _native.receive(near.fileno(), memoryview(bytes(8)))
        far.close()
        assert _native.receive(near.fileno(), memoryview(room)) == 0


def test_importing_the_package_brings_all_it_needs_but_opens_nothing() -> None:
    script = (
        "import sys, threading, os, client_stub\n"
        "assert threading.active_count() == 1\n"
        "links = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3']\n"
        "assert not any('eventfd' in link or 'socket' in link for link in links), links\n"
    )
    # A parent that preloads it pays for all forked children; libzmq and asyncio would be most of a small client.
    imported = (
        "import sys, client_stub\n"
        "sys.exit('client_stub.zmtp.connection' not in sys.modules or 'zmq' in sys.modules or 'asyncio' in sys.modules)"
    )
    for program in (script, imported):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


# --- without the compiled part ----------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The package as a host has it for which nothing was compiled."""
    shutil.copytree(
        ROOT / "client_stub",
        tmp_path / "client_stub",
        ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"),
    )
    return tmp_path


def run_in(tree: Path, program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


USES = """
import importlib, client_stub, client_stub.errors, client_stub.contract.wire
from client_stub import SidecarError, errors

for use in (
    lambda: client_stub.Producer,
    lambda: client_stub.AsyncProducer,
    lambda: importlib.import_module("client_stub.producer"),
    lambda: importlib.import_module("client_stub.testing"),
    lambda: importlib.import_module("client_stub.compat.confluent"),
):
    try:
        use()
    except ImportError as error:
        print(error)
try:
    from client_stub import Producer
except ImportError as error:
    print(error)
print(hasattr(client_stub, "no_such_name"))
"""


def test_a_missing_compiled_part_is_one_sentence_at_the_first_use(tree: Path) -> None:
    *said, has_other = run_in(tree, USES)
    (sentence,) = set(said)
    assert len(said) == 6 and has_other == "False"
    assert sentence == (
        f"client_stub has no compiled part for CPython {platform.python_version()} on linux {platform.machine()}: "
        "install kafka-sidecar again with this Python, from a wheel or with a C compiler and the Python headers."
    )


def test_a_source_folder_that_hides_the_installed_package_is_named(tree: Path) -> None:
    """As for a job that is started in the clone."""
    (tree / "setup.py").touch()
    sentence = run_in(tree, USES)[0]
    assert sentence == (
        f"client_stub is imported from its source folder {tree}, which has no compiled part for CPython "
        f"{platform.python_version()} on linux {platform.machine()}: start in another folder, or run pip install -e "
        f"{tree}"
    )


def test_a_compiled_part_that_cannot_be_loaded_is_named_with_the_reason(tree: Path) -> None:
    broken = tree / "client_stub" / "native" / Path(_native.__file__).name
    broken.write_bytes(b"no library")
    *said, _ = run_in(tree, USES)
    (sentence,) = set(said)
    assert sentence.startswith(f"The compiled part of client_stub, {broken}, cannot be loaded by CPython ")
    assert "(" in sentence and "again with this Python" in sentence
