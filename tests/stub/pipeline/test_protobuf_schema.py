"""Schema files of Protobuf, compiled by protoc."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_stub.pipeline.misfit import Misfit
from client_stub.pipeline.protobuf_schema import compile_text, read_schema

pytestmark = pytest.mark.slow

PROTO = """\
syntax = "proto3";
package late;
import "google/protobuf/timestamp.proto";
message Other { google.protobuf.Timestamp at = 1; }
message Flight { string carrier = 1; message Part { int32 a = 1; } }
"""


@pytest.fixture(autouse=True)
def _needs_protoc() -> None:
    pytest.importorskip("grpc_tools")
    pytest.importorskip("google.protobuf.descriptor_pb2")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flight.proto"
    path.write_text(PROTO)
    return path


def test_a_message_is_found_by_either_name(file: Path) -> None:
    first = read_schema(file, None)
    assert (first.message, first.number, first.imports) == ("late.Other", 0, [])
    for name in ("Flight", "late.Flight"):
        found = read_schema(file, name)
        assert (found.message, found.number) == ("late.Flight", 1)
    assert compile_text(PROTO, "Flight").message == "late.Flight"


def test_a_descriptor_set_is_as_its_source(file: Path) -> None:
    found = read_schema(file, "Flight")
    (file.parent / "flight.desc").write_bytes(found.descriptor_set)
    assert read_schema(file.parent / "flight.desc", "Flight") == found


def test_imports_are_named(file: Path) -> None:
    (file.parent / "all.proto").write_text(
        'syntax = "proto3";\nimport "flight.proto";\nmessage A { late.Flight f = 1; }'
    )
    found = read_schema(file.parent / "all.proto", None)
    assert (found.message, found.imports) == ("A", ["flight.proto"])


@pytest.mark.parametrize(
    ("name", "content", "message", "text", "todo"),
    [
        ("a.proto", b'syntax = "proto3";\nmessage A {', None, " Protobuf: a.proto:2:12: ", "correct the file"),
        ("a.proto", b'syntax = "proto3";', None, "has no message", "correct the file"),
        ("a.proto", PROTO.encode(), "Part", "a.proto has no message Part", "known are late.Other, late.Flight"),
        ("a.desc", b"no set", None, "is no descriptor set of Protobuf", "give the .proto file, or what protoc "),
        ("a.desc", b"", None, "is no descriptor set of Protobuf", "give the .proto file, or what protoc "),
        ("a.desc", None, None, "cannot be read: No such file or directory", "name the schema's file"),
        ("a.proto", None, None, "cannot be read: No such file or directory", "name the schema's file"),
    ],
)  # fmt: skip
def test_faults_of_a_schema(
    tmp_path: Path, name: str, content: bytes | None, message: str | None, text: str, todo: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Misfit) as raised:
        read_schema(tmp_path / name, message)
    assert text in str(raised.value)
    assert raised.value.todo.startswith(todo)
