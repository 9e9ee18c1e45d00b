"""Goal: rules for imports. A room that reaches into one that it must not know is a failing test.

Read from the syntax trees, so that imports inside functions and under TYPE_CHECKING count as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WIRE = "client_stub.contract.wire"
OURS: dict[str, tuple[str, ...]] = {
    # It could be published alone.
    "client_stub.zmtp": ("client_stub.zmtp",),
    # The stub, from the bottom to the top: each room knows only rooms that come before it here.
    "client_stub.contract": ("client_stub.contract",),
    "client_stub.record_metadata": (),
    "client_stub.errors": ("client_stub.contract", "client_stub.record_metadata"),
    "client_stub.system": ("client_stub.system", "client_stub.contract", "client_stub.errors"),
    "client_stub.records": (
        "client_stub.records",
        "client_stub.contract",
        "client_stub.errors",
        "client_stub.zmtp.frames",
    ),
    "client_stub.native": (
        "client_stub.native",
        "client_stub.contract.wire",
        "client_stub.record_metadata",
        "client_stub.errors",
        "client_stub.records",
        "client_stub.zmtp.frames",
    ),
    "client_stub.outbox": (
        "client_stub.outbox",
        "client_stub.contract",
        "client_stub.record_metadata",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.records",
        "client_stub.native",
    ),
    "client_stub.session": (
        "client_stub.session",
        "client_stub.contract.wire",
        "client_stub.errors",
        "client_stub.system.log",
        "client_stub.system.minute_limit",
        "client_stub.native.hot",
        "client_stub.outbox.callback_log",
        "client_stub.outbox.open_stage",
        "client_stub.outbox.submission",
        "client_stub.outbox.transaction",
        "client_stub.outbox.txn_call",
        "client_stub.outbox.wait_reasons",
        "client_stub.zmtp.frames",
    ),
    "client_stub.io": (
        "client_stub.io",
        "client_stub.contract",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.zmtp",
        "client_stub.native.hot",
        "client_stub.outbox",
        "client_stub.session",
    ),
    "client_stub.engine": (
        "client_stub.engine",
        "client_stub.contract",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.records",
        "client_stub.native",
        "client_stub.outbox",
        "client_stub.session",
        "client_stub.io",
    ),
    "client_stub.aio": (
        "client_stub.aio",
        "client_stub.record_metadata",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.records",
        "client_stub.native.hot",
        "client_stub.outbox",
        "client_stub.io",
        "client_stub.engine",
    ),
    # Above the fronts, which are the last of the stub's rows.
    "client_stub.compat": (
        "client_stub.compat",
        "client_stub.contract",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.records",
        "client_stub.native",
        "client_stub.outbox",
        "client_stub.io",
        "client_stub.engine",
        "client_stub.inner_producer",
    ),
    "client_stub.spark": (
        "client_stub.spark",
        "client_stub.contract",
        "client_stub.record_metadata",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.outbox",
        "client_stub.io",
        "client_stub.inner_producer",
        "client_stub.producer",
        "client_stub.stage",
    ),
    "client_stub.fakes": (
        "client_stub.fakes",
        "client_stub.contract",
        "client_stub.record_metadata",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.records",
        "client_stub.native",
        "client_stub.outbox",
        "client_stub.io",
        "client_stub.engine",
        "client_stub.aio",
        "client_stub.producer",
        "client_stub.async_producer",
    ),
    # A program on top of the stub; nothing of the stub knows it.
    "client_stub.pipeline": (
        "client_stub.pipeline",
        "client_stub.contract.run_dir",
        "client_stub.errors",
        "client_stub.system.originals",
        "client_stub.io.daemon_address",
        "client_stub.io.topic_lookup",
        "client_stub.producer",
        "client_stub.records.packer",
        "client_stub.spark",
    ),
    "client_stub.testing": ("client_stub.fakes",),
    "client_stub": (
        "client_stub.record_metadata",
        "client_stub.errors",
        "client_stub.system",
        "client_stub.records",
        "client_stub.native",
        "client_stub.outbox",
        "client_stub.session",
        "client_stub.io",
        "client_stub.engine",
        "client_stub.aio",
        "client_stub.stage",
        "client_stub.producer",
        "client_stub.async_producer",
        "client_stub.inner_producer",
    ),
    "pyspark_kafka_sidecar": ("client_stub", "pyspark_kafka_sidecar"),
    "sidecar.common": ("sidecar.common", WIRE, "client_stub.contract.error_codes"),
    # The loader checks the files that settings name, TLS files by the parts that use them.
    "sidecar.config.loader": (
        "sidecar.config",
        "sidecar.net.tls",
        "client_stub.zmtp.keys",
        "client_stub.contract.tcp",
    ),
    "sidecar.config": (
        "sidecar.config",
        "sidecar.common",
        "sidecar.shm.private_files",
        WIRE,
        "client_stub.zmtp.keys",
    ),
    "sidecar.kernel": ("sidecar.kernel",),
    "sidecar.shm": ("sidecar.shm", "sidecar.common.state_table", "sidecar.kernel", WIRE),
    "sidecar.tools.testing.kill_points": (
        "sidecar.tools.testing.kill_points",
        "sidecar.kernel",
        "sidecar.shm",
    ),
    "sidecar.deadletter": (
        "sidecar.deadletter",
        "sidecar.config",
        "sidecar.kernel",
        "sidecar.shm",
        WIRE,
        "client_stub.contract.error_codes",
    ),
    "sidecar.protocol": (
        "sidecar.protocol",
        "sidecar.common",
        "sidecar.kernel",
        "sidecar.config.sasl_settings",
    ),
    "sidecar.metadata": ("sidecar.metadata", "sidecar.common"),
    "sidecar.producer": (
        "sidecar.producer",
        "sidecar.common",
        "sidecar.kernel",
        "sidecar.metadata",
        "sidecar.protocol",
        WIRE,
    ),
    "sidecar.net.tls": (
        "sidecar.net.tls",
        "sidecar.net.daemon_thread",
        "sidecar.common",
        "sidecar.config",
    ),
    "sidecar.net.kafka": (
        "sidecar.net.kafka",
        "sidecar.net.tls",
        "sidecar.net.current_secret",
        "sidecar.common",
        "sidecar.config",
        "sidecar.protocol",
    ),
    "sidecar.net": (
        "sidecar.net",
        "sidecar.common",
        "sidecar.config",
        "client_stub.zmtp",
        "client_stub.native.hot",
    ),
    "sidecar.telemetry": (
        "sidecar.telemetry",
        "sidecar.common.sparse_log",
        "sidecar.shm",
    ),
    # Rooms of the worker: each names the parts of the others that it may know. Their wiring stands above them.
    "sidecar.worker.streams": (
        "sidecar.worker.streams",
        "sidecar.common",
        "sidecar.config",
        "sidecar.kernel",
        "sidecar.shm",
        "sidecar.net.stubs.unattached",
        "sidecar.producer.topic_settings",
        "sidecar.producer.transaction_manager",
        "sidecar.producer.transaction_states",
        "sidecar.deadletter.letters",
        WIRE,
    ),
    "sidecar.worker.transactions": (
        "sidecar.worker.transactions",
        "sidecar.worker.streams",
        "sidecar.worker.topics",
        "sidecar.worker.outcomes.releases",
        "sidecar.worker.turns",
        "sidecar.common",
        "sidecar.kernel",
        "sidecar.shm",
        "sidecar.protocol",
        "sidecar.metadata",
        "sidecar.producer",
        "sidecar.net.kafka",
        WIRE,
    ),
    "sidecar.worker.stubs": (
        "sidecar.worker.stubs",
        "sidecar.worker.streams",
        "sidecar.worker.topics",
        "sidecar.worker.outcomes",
        "sidecar.worker.host",
        "sidecar.worker.turns",
        "sidecar.common",
        "sidecar.kernel",
        "sidecar.shm",
        "sidecar.producer.lanes",
        "sidecar.net",
        WIRE,
        "client_stub.zmtp.frames",
    ),
    "sidecar.worker.brokers": (
        "sidecar.worker.brokers",
        "sidecar.worker.host",
        "sidecar.worker.turns",
        "sidecar.common",
        "sidecar.kernel",
        "sidecar.shm",
        "sidecar.protocol",
        "sidecar.metadata",
        "sidecar.producer",
        "sidecar.net",
    ),
    "sidecar.worker.topics": (
        "sidecar.worker.topics",
        "sidecar.worker.streams",
        "sidecar.worker.outcomes.releases",
        "sidecar.worker.outcomes.settlement",
        "sidecar.kernel",
        "sidecar.shm",
        "sidecar.metadata",
        "sidecar.producer",
        WIRE,
    ),
    "sidecar.worker.outcomes": (
        "sidecar.worker.outcomes",
        "sidecar.worker.streams",
        "sidecar.worker.slot_memory",
        "sidecar.worker.turns",
        "sidecar.common",
        "sidecar.kernel",
        "sidecar.shm",
        "sidecar.producer",
        "sidecar.deadletter",
        WIRE,
    ),
    "sidecar.worker.adoption": (
        "sidecar.worker.adoption",
        "sidecar.worker.outcomes",
        "sidecar.worker.streams",
        "sidecar.worker.topics",
        "sidecar.worker.transactions",
        "sidecar.worker.slot_memory",
        "sidecar.common",
        "sidecar.kernel",
        "sidecar.shm",
        "sidecar.producer",
        "sidecar.deadletter",
        WIRE,
    ),
    "sidecar.worker": (
        "sidecar.worker",
        "sidecar.common",
        "sidecar.config",
        "sidecar.tools.testing.kill_points",
        "sidecar.shm",
        "sidecar.protocol",
        "sidecar.metadata",
        "sidecar.producer",
        "sidecar.net",
        "sidecar.deadletter",
        WIRE,
        "client_stub.zmtp.frames",
        "client_stub.zmtp.keys",
    ),
    # The killer and the killed: the plan knows of neither, and a client only of the product's front door.
    "sidecar.tools.chaos.plan": ("sidecar.tools.chaos.plan",),
    "sidecar.tools.chaos.client_journal": ("sidecar.tools.chaos.client_journal",),
    "sidecar.tools.chaos.client": (
        "sidecar.tools.chaos.client",
        "sidecar.tools.chaos.client_journal",
        "client_stub",
    ),
    "sidecar.tools.chaos.trend": ("sidecar.tools.chaos.trend",),
    # Rooms of the controller, each above those that it may know. Daemon, at the top, wires them.
    "sidecar.controller.rundir": (
        "sidecar.controller.rundir",
        "sidecar.common",
        "sidecar.config",
        "sidecar.shm",
        WIRE,
        # Where both sides meet by default is one function.
        "client_stub.contract.run_dir",
    ),
    "sidecar.controller.workers": (
        "sidecar.controller.workers",
        "sidecar.controller.rundir",
        "sidecar.controller.event_wait",
        "sidecar.common",
        "sidecar.config",
        "sidecar.shm",
        "sidecar.net.control_channel",
    ),
    "sidecar.controller.cluster": (
        "sidecar.controller.cluster",
        "sidecar.controller.workers.worker_process",
        "sidecar.controller.event_wait",
        "sidecar.common",
        "sidecar.config",
        "sidecar.protocol",
        "sidecar.metadata",
        "sidecar.net",
    ),
    "sidecar.controller.status": (
        "sidecar.controller.status",
        "sidecar.controller.front",
        "sidecar.controller.cluster.cluster",
        "sidecar.controller.workers.supervisor",
        "sidecar.controller.rundir",
        "sidecar.common",
        "sidecar.config",
        "sidecar.telemetry.exporter",
        "sidecar.telemetry.page",
        WIRE,
    ),
    "sidecar.controller.front": (
        "sidecar.controller.front",
        "sidecar.controller.rundir",
        "sidecar.controller.workers.worker_process",
        "sidecar.common",
        "sidecar.config",
        "sidecar.net",
        "sidecar.telemetry.exporter",
        WIRE,
    ),
    "sidecar.controller": (
        "sidecar.controller",
        "sidecar.common",
        "sidecar.config",
        "sidecar.shm",
        "sidecar.protocol",
        "sidecar.net",
        "sidecar.telemetry.exporter",
    ),
}
"""Room → what of ours it may import. Each is used: a door that nobody takes is not open."""

TOOLS: dict[str, tuple[str, ...]] = {
    "sidecar.tools.testing": (),
    "sidecar.tools.pages": (),
    "sidecar.doctor": (),
    "sidecar.tools.demo": ("sidecar.tools.testing",),
    "sidecar.tools.bench": ("sidecar.tools.testing", "sidecar.tools.demo"),
    "sidecar.tools.chaos": ("sidecar.tools.testing", "sidecar.tools.demo"),
    "sidecar.cli": ("sidecar.tools.bench", "sidecar.tools.chaos", "sidecar.tools.demo", "sidecar.doctor"),
    "sidecar.__main__": ("sidecar.cli",),
}
"""They stand above the product and may use all of it, and of each other these. Nothing below imports them."""

NEVER: dict[str, tuple[str, ...]] = {
    "sidecar.common": ("asyncio", "socket", "zmq"),
    "sidecar.shm": ("asyncio", "zmq", "socket"),
    "sidecar.deadletter": ("asyncio", "zmq", "socket"),
    "sidecar.protocol": ("asyncio", "zmq", "socket", "time"),
    "sidecar.metadata": ("asyncio", "zmq", "socket", "time"),
    "sidecar.producer": ("asyncio", "zmq", "socket", "time", "os", "uvloop"),
    "sidecar.net": ("zmq",),
    "sidecar.tools.chaos.plan": (
        "asyncio",
        "zmq",
        "socket",
        "time",
        "os",
        "signal",
        "subprocess",
        "threading",
    ),
    "sidecar.tools.chaos.trend": (
        "asyncio",
        "zmq",
        "socket",
        "time",
        "os",
        "signal",
        "subprocess",
        "threading",
    ),
    "sidecar.worker": ("click", "rich", "prometheus_client", "hypothesis"),
    "sidecar.controller": ("click", "rich", "hypothesis"),
    "client_stub": ("click", "kio", "uvloop", "zmq"),
    "client_stub.zmtp": ("asyncio", "socket", "time", "threading", "zmq"),
}
ONLY_IN: dict[str, tuple[str, ...]] = {
    "socket": ("client_stub/io/link.py", "client_stub/io/host_lookup.py", "client_stub/spark"),
    "pyarrow": (
        "client_stub/records/columns.py",
        "client_stub/records/column_sizes.py",
        "client_stub/records/column_types.py",
        "client_stub/spark",
    ),
    "pyspark": ("client_stub/spark", "client_stub/pipeline"),
}
"""Within client_stub: the only files that may import these."""
TIME_ONLY_IN = "sidecar/common/clock.py"
BY_NAME_ONLY = {("client_stub.command", "sidecar.__main__")}
"""An import that runs only where it succeeds: the stub's command is the daemon's where that is installed."""


def sources() -> Iterator[tuple[str, Path]]:
    for package in ("sidecar", "client_stub", "pyspark_kafka_sidecar"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def imports(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything imported, also by ``import_module("name")``; names imported from a package
    count as its modules.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: -node.level]
                base = ".".join([*parts, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def type_only_lines(tree: ast.AST) -> set[int]:
    """Lines of imports under ``if TYPE_CHECKING``: they cost a process nothing."""
    return {
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    }


def violations(module: str, path: Path, text: str) -> list[str]:
    found = []
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    room = next((room for room in OURS if within(module, room)), None)
    tool = next((tool for tool in TOOLS if within(module, tool)), None)
    tree = ast.parse(text)
    type_only = type_only_lines(tree)
    for line, name in imports(module, tree):
        if (module, name) in BY_NAME_ONLY:
            continue
        where = f"{place}:{line} imports {name}"
        is_ours = name.split(".")[0] in ("sidecar", "client_stub", "pyspark_kafka_sidecar")
        if room is not None and is_ours and not any(within(name, allowed) for allowed in OURS[room]):
            found.append(f"{where}: {room} may not know that room")
        other = next((tool for tool in TOOLS if within(name, tool)), None)
        if tool is not None and other not in (None, tool, *TOOLS[tool]):
            found.append(f"{where}: {tool} may not know that room")
        for each, never in NEVER.items():
            if within(module, each) and any(within(name, other) for other in never):
                found.append(f"{where}: never in {each}")
        if room == "sidecar.common" and within(name, "time") and str(place) != TIME_ONLY_IN:
            found.append(f"{where}: only {TIME_ONLY_IN} reads clocks")
        top = name.split(".")[0]
        if line in type_only:
            continue
        if within(module, "client_stub") and top in ONLY_IN and not str(place).startswith(ONLY_IN[top]):
            found.append(f"{where}: only in {', '.join(ONLY_IN[top])}")
    return found


def test_layering() -> None:
    found = [each for module, path in sources() for each in violations(module, path, path.read_text())]
    assert not found, "\n".join(found)


def cython_imports(text: str) -> Iterator[str]:
    """Modules of ours that a Cython file imports, in either way."""
    found = re.findall(
        r"^\s*(?:from|c?import) +((?:sidecar|client_stub)\b[\w.]*)(?: +c?import +\(?(\w+))?",
        text,
        re.MULTILINE,
    )
    yield from (f"{module}.{name}" if name else module for module, name in found)


def compiled() -> Iterator[tuple[str, Path, set[str]]]:
    """(room, file, what it imports of ours) of each Cython file."""
    for package in ("sidecar", "client_stub"):
        for path in sorted((ROOT / package).rglob("*.p[xy][xid]")):
            if path.suffix != ".pyi":
                room = ".".join(path.parent.relative_to(ROOT).parts)
                yield room, path, set(cython_imports(path.read_text()))


def test_compiled_parts_know_no_more_than_their_rooms() -> None:
    """The kernel knows nothing of ours."""
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for room, path, names in compiled()
        for name in names
        if not any(within(name, allowed) for allowed in OURS[room])
    ]
    assert not found, "\n".join(found)
    text = (
        "from sidecar.shm cimport (\n    a)\n    from client_stub.contract import wire\nimport sidecar.net\n"
    )
    assert list(cython_imports(text)) == ["sidecar.shm", "client_stub.contract.wire", "sidecar.net"]


def test_every_room_has_rules() -> None:
    rooms = {
        ".".join(module.split(".")[: 3 if module.startswith("sidecar.tools.") else 2])
        for module, _ in sources()
        if module.startswith("sidecar.") and not module.endswith(("sidecar.__init__", "tools.__init__"))
    }
    rooms |= {f"client_stub.{path.parent.name}" for path in (ROOT / "client_stub").glob("*/__init__.py")}
    assert rooms <= {*OURS, *TOOLS}, "a new room needs a line in the table above"


@pytest.mark.slow
def test_every_open_door_is_taken() -> None:
    """Else the table would allow what no code needs, and the next arrow through it would be seen by nobody."""
    taken: set[tuple[str, str]] = set()
    for module, path in sources():
        for rooms in (OURS, TOOLS):
            room = next((room for room in rooms if within(module, room)), None)
            if room is not None:
                names = {name for _, name in imports(module, ast.parse(path.read_text()))}
                taken |= {(room, door) for door in rooms[room] for name in names if within(name, door)}
    for room, _, names in compiled():
        taken |= {(room, door) for door in OURS[room] for name in names if within(name, door)}
    doors = {
        (room, door) for rooms in (OURS, TOOLS) for room in rooms for door in rooms[room] if door != room
    }
    assert not doors - taken, f"strike them from OURS and from the map in docs/tour.md: {doors - taken}"


def circles(doors: Mapping[str, Iterable[str]]) -> list[str]:
    """Rooms that cannot be put in an order in which each knows only earlier ones."""
    left = {room: {door for door in known if door != room} for room, known in doors.items()}
    while free := [room for room, known in left.items() if not known & left.keys()]:
        for room in free:
            del left[room]
    return sorted(left)


@pytest.mark.slow
def test_no_rooms_know_each_other() -> None:
    """Nor their types: who reads one room need read only those below it."""
    above = ("sidecar.worker", "sidecar.controller")  # each wires its rooms
    rooms = [room for room in OURS if room not in above]
    doors: dict[str, set[str]] = {room: set() for room in rooms}
    # A file of theirs that a room may know is itself a room here.
    files = {
        door for room in rooms for door in OURS[room] if any(within(door, each) for each in above)
    } - set(rooms)
    files = {each for each in files if not any(within(each, room) for room in rooms)}
    for module, path in sources():
        room = next((room for room in (*rooms, *files) if within(module, room)), None)
        if room is not None:
            for _, name in imports(module, ast.parse(path.read_text())):
                other = next((other for other in (*rooms, *files) if within(name, other)), room)
                doors.setdefault(room, set()).add(other)
    for room, _, names in compiled():
        doors[room] |= {other for name in names for other in rooms if within(name, other)} - {"client_stub"}
    assert files >= {"sidecar.worker.host", "sidecar.worker.slot_memory", "sidecar.worker.turns"}
    assert not circles(doors), (
        "these rooms import each other, in a circle: turn one import round, or pass it in"
    )
    assert circles({"a": ["b"], "b": ["c", "b"], "c": ["a"], "d": ["c"], "e": ["f"], "f": []}) == list("abcd")


def test_a_class_name_has_one_owner() -> None:
    """Two classes of one name in two rooms are two things to mix up, or one thing written twice."""
    owners: dict[str, list[str]] = {}
    for module, path in sources():
        # The twins have the names of the classes that they stand for.
        if not any(within(module, other) for other in (*TOOLS, "client_stub.compat")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    owners.setdefault(node.name, []).append(module)
    # The daemon's error becomes the stub's of the same name, at the other end of the wire.
    allowed = {"MetadataTimeout": ["sidecar.metadata.errors", "client_stub.errors"]}
    shared = {name: modules for name, modules in owners.items() if len(modules) > 1}
    assert shared == allowed, "give each class a name of its own"


def test_every_room_says_what_it_is_and_what_it_must_not_touch() -> None:
    for path in sorted({path.parent for _, path in sources()}):
        said = ast.get_docstring(ast.parse((path / "__init__.py").read_text())) or ""
        lines = [line for line in said.splitlines() if line]
        assert len(lines) >= 2, f"{path.relative_to(ROOT)}/__init__.py: say in two lines what this room is"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("sidecar.producer.x", "import asyncio"),
        ("sidecar.producer.x", "def f():\n    from time import monotonic"),
        ("sidecar.worker.x", "from sidecar.controller import daemon"),
        ("sidecar.worker.x", "from sidecar import telemetry"),
        ("sidecar.worker.brokers.x", "from sidecar.worker.stubs import intake"),
        ("sidecar.worker.topics.x", "from sidecar.net.stubs import endpoint"),
        ("sidecar.worker.outcomes.x", "import sidecar.worker.brokers.produce_port"),
        ("sidecar.controller.x", "import sidecar.producer.sender"),
        ("sidecar.controller.workers.x", "from sidecar.controller.cluster.cluster import Cluster"),
        ("sidecar.controller.rundir.x", "from sidecar.controller.workers.supervisor import Supervisor"),
        ("sidecar.net.kafka.x", "from sidecar.net.stubs import endpoint"),
        ("sidecar.kernel.x", "from ..shm import layout"),
        ("sidecar.shm.x", "from client_stub import producer"),
        ("sidecar.common.x", "import time"),
        ("sidecar.producer.x", "from sidecar.shm import layout"),
        ("sidecar.tools.bench.__main__", "from sidecar.cli.bench import bench"),
        ("sidecar.tools.testing.x", "import sidecar.tools.chaos.plan"),
        ("sidecar.tools.demo.x", "from sidecar.tools import bench"),
        ("sidecar.tools.chaos.plan", "import time"),
        ("sidecar.tools.chaos.client", "from sidecar.tools.testing import ledger"),
        ("client_stub.contract.x", "from client_stub import errors"),
        ("client_stub.records.x", "from client_stub.engine import producer_core"),
        ("client_stub.outbox.x", "from client_stub.session.session import Session"),
        ("client_stub.session.x", "from client_stub.io import transport"),
        ("client_stub.session.x", "from client_stub.outbox.outbox import Outbox"),
        ("client_stub.io.x", "from client_stub.producer import Producer"),
        ("client_stub.aio.x", "import zmq"),
        ("client_stub.engine.x", "import socket"),
        ("client_stub.engine.x", "from client_stub.producer import Producer"),
        ("client_stub.producer", "from client_stub.compat.confluent import Producer"),
        ("client_stub.x", "import sidecar"),
        ("client_stub.x", "importlib.import_module('sidecar.kernel')"),
        ("client_stub.x", "import zmq"),
    ],
)
def test_the_test_can_fail(module: str, text: str) -> None:
    assert violations(module, ROOT / (module.replace(".", "/") + ".py"), text)
