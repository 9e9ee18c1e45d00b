"""Schema files of Protobuf: a ``.proto`` file, which is compiled here, or the descriptor set that protoc writes.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from client_stub.pipeline.misfit import Misfit

SOURCE_SUFFIX: Final = ".proto"
BUILT_IN: Final = "google/protobuf/"
"""Files that every reader has."""
COMPILE_S: Final = 60.0
EXTRA: Final = "pip install 'kafka-sidecar[protobuf]'"


class ProtobufSchema(NamedTuple):
    """``message`` is its full name; ``number`` its position among the messages of its file."""

    descriptor_set: bytes
    message: str
    number: int
    imports: list[str]
    """But for those that every reader has."""


def read_schema(file: Path, message: str | None) -> ProtobufSchema:
    """Read a schema file; without ``message`` its first one is taken. Raises Misfit."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise Misfit(
            "_schema", f"{file} cannot be read: {error.strerror}", "name the schema's file"
        ) from None
    if file.suffix == SOURCE_SUFFIX:
        content = _compiled(file)
    return _schema(file, content, message)


def compile_text(text: str, message: str | None) -> ProtobufSchema:
    """As read_schema() of a registry's ``.proto`` text."""
    with tempfile.TemporaryDirectory(prefix="kafka-sidecar-pipeline-") as folder:
        file = Path(folder) / f"schema{SOURCE_SUFFIX}"
        file.write_text(text)
        return read_schema(file, message)


def _compiled(file: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kafka-sidecar-pipeline-") as folder:
        target = Path(folder) / "set"
        done = subprocess.run(
            [
                *_compiler(),
                "--include_imports",
                f"--descriptor_set_out={target}",
                f"-I{file.parent}",
                file.name,
            ],
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            check=False,
        )
        if done.returncode != 0:
            reason = next(iter(done.stderr.strip().splitlines()), "protoc failed")
            text = reason.removeprefix(f"{file.parent}/")
            raise Misfit("_schema", f"{file} is no schema of Protobuf: {text}", "correct the file")
        return target.read_bytes()


def _compiler() -> list[str]:
    found = shutil.which("protoc")
    if found is not None:
        return [found]
    if importlib.util.find_spec("grpc_tools") is not None:
        return [sys.executable, "-P", "-m", "grpc_tools.protoc"]
    raise Misfit("_schema", "a .proto file needs protoc, which is not installed", EXTRA)


def _schema(file: Path, content: bytes, message: str | None) -> ProtobufSchema:
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError
    except ImportError:
        raise Misfit(
            "_format", "protobuf needs the package protobuf, which is not installed", EXTRA
        ) from None
    found = FileDescriptorSet()
    try:
        found.ParseFromString(content)
    except DecodeError:
        found.Clear()
    if not found.file:
        todo = (
            f"give the .proto file, or what protoc --include_imports --descriptor_set_out={file.name} writes"
        )
        raise Misfit("_schema", f"{file} is no descriptor set of Protobuf", todo)
    # Imports come before the file that imports them.
    main = found.file[-1]
    prefix = f"{main.package}." if main.package else ""
    names = [f"{prefix}{each.name}" for each in main.message_type]
    if not names:
        raise Misfit("_schema", f"{file} has no message", "correct the file")
    wanted = names[0] if message is None else message
    full = next((name for name in names if wanted in (name, name.removeprefix(prefix))), None)
    if full is None:
        raise Misfit("_message", f"{file.name} has no message {wanted}", f"known are {', '.join(names)}")
    imports = [each for each in main.dependency if not each.startswith(BUILT_IN)]
    return ProtobufSchema(content, full, names.index(full), imports)
