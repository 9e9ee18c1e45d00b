"""Goal: the stub has real threads, locks and polls, and a lock for green threads. Where that cannot be, a send says so.

Method: separate programs, as a patch cannot be taken back. They are `slow`: make quick installs no green threads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stub.fake_daemon import FakeDaemon

ROOT = Path(__file__).parents[3]
PATCHES = {
    "gevent": "import gevent.monkey; gevent.monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
HUBS = {"gevent": "import gevent; hub = gevent.get_hub()", "eventlet": "import eventlet; eventlet.sleep(0)"}

IN_A_REAL_THREAD = """
from types import BuiltinFunctionType
from client_stub.system import originals

assert not originals.refused
for name in ("start_new_thread", "allocate_lock", "get_ident", "poll"):
    assert isinstance(getattr(originals, name), BuiltinFunctionType), name
here, lock = originals.get_ident(), originals.allocate_lock()
lock.acquire()

def run():
    print(originals.get_ident() != here)
    lock.release()

originals.start_thread(run, "real")
lock.acquire()  # holds up all green threads: only a real one can end this
"""
LOCKS = """
from client_stub.outbox.green_lock import GreenLock, locked_lock, pause
from client_stub.system.originals import start_thread

lock = locked_lock()
assert isinstance(lock, GreenLock)
lock.release()
assert lock.acquire(timeout=60), "released before the wait"
assert not lock.acquire(timeout=0.01)
start_thread(lock.release, "real")
assert lock.acquire(timeout=60)
start_thread(lock.release, "real")
assert lock.acquire()
lock.release()
lock.release()
assert lock.acquire(timeout=60)
assert not lock.acquire(timeout=0.01), "two releases at once are one"
pause(0.01)
print(True)
"""
IN_THE_HUB = """
import gevent
from client_stub.outbox.green_lock import GreenLock, locked_lock

def look():
    print(not isinstance(locked_lock(), GreenLock))

gevent.get_hub().loop.run_callback(look)
gevent.sleep(0)
"""
WITHOUT_ORIGINALS = """
import _thread
_thread.start_new_thread = lambda *_: 0
from client_stub import Producer, errors
import sys

try:
    Producer(sys.argv[1]).send("a", b"1")
except errors.SidecarError as error:
    print(error)
"""


def said(program: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("library", PATCHES)
def test_threads_and_locks_are_real_whether_patched_before_or_after_the_import(
    library: str, late: bool
) -> None:
    both = ["import client_stub", PATCHES[library]]
    assert said("\n".join([*(both if late else both[::-1]), IN_A_REAL_THREAD])) == "True"


@pytest.mark.slow
@pytest.mark.parametrize("library", HUBS)
def test_a_green_lock_is_released_from_any_thread_and_its_timeout_ends(library: str) -> None:
    assert said(HUBS[library] + LOCKS) == "True"


@pytest.mark.slow
def test_a_callback_of_the_hub_waits_as_other_threads_do() -> None:
    assert said(IN_THE_HUB) == "True"


def test_the_first_send_says_that_there_are_no_real_threads(daemon: FakeDaemon) -> None:
    assert said(WITHOUT_ORIGINALS, str(daemon.run_dir)) == (
        "_thread.start_new_thread() of this process is not Python's own, and neither gevent nor eventlet has replaced "
        "it: import client_stub before whatever replaces it, as a producer needs a real thread."
    )
