"""Goal: a setting that a user can write has an effect: something in the product reads it.

A reader asks for it by name, or has it as a field that ``config_of`` or ``WorkerSettings`` fills and somebody asks for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from sidecar.config.settings import BY_NAME, SETTINGS
from tests.conventions.unused import product_files

ROWS: Final = frozenset({"Setting", "integer", "choice", "_path", "_secret", "_pem"})
"""Their calls make a row: that reads nothing."""

READ_OTHERWISE: Final = {
    "client.dns.lookup": "it has one value, and names what is always done",
    "sasl.oauthbearer.client.credentials.client.secret": "sidecar/config/sasl_rules.py makes it the shorter name",
    "ssl.truststore.type": "sidecar/net/tls/tls_files.py puts the name together",
    "ssl.truststore.password": "sidecar/net/tls/tls_files.py puts the name together",
    "ssl.keystore.type": "sidecar/net/tls/tls_files.py puts the name together",
    "ssl.keystore.password": "sidecar/net/tls/tls_files.py puts the name together",
}


def names_read(source: ast.AST) -> Iterator[str]:
    """Words in places that ask for something by name: brackets, arguments, constants, and tuples that a loop walks."""
    for node in ast.walk(source):
        asked: Iterable[ast.expr | None] = ()
        match node:
            case ast.Subscript(slice=name, ctx=ast.Load()):
                asked = [name]
            case ast.Call(func=ast.Name(id=made)) if made in ROWS:
                pass
            case ast.Call(args=arguments):
                asked = arguments
            case ast.AnnAssign(value=name):
                asked = [name]
            case ast.For(iter=ast.Tuple(elts=names)):
                asked = names
        for each in asked:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value


def fields(source: ast.AST) -> Iterator[tuple[str, str]]:
    """(class, field) of the dataclasses."""
    for node in ast.walk(source):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield node.name, each.target.id


def attributes_read(source: ast.AST) -> Iterator[str]:
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def sources() -> list[ast.Module]:
    return [ast.parse(text) for path, text in product_files() if path.endswith(".py")]


@pytest.mark.slow
def test_every_setting_is_read() -> None:
    trees = sources()
    asked = {name for tree in trees for name in names_read(tree)}
    held = {field for tree in trees for _, field in fields(tree)} & {
        name for tree in trees for name in attributes_read(tree)
    }
    unread = {
        row.name
        for row in SETTINGS
        if row.name not in asked
        and row.key.replace(".", "_") not in held
        # NAME.file has the secret NAME: sidecar/config/secret_sources.py asks for both.
        and not (row.name.endswith(".file") and BY_NAME[row.name.removesuffix(".file")].secret)
    }
    assert not unread - READ_OTHERWISE.keys(), (
        f"settings that nothing reads: {unread - READ_OTHERWISE.keys()}"
    )
    assert unread >= READ_OTHERWISE.keys(), f"read by now: {READ_OTHERWISE.keys() - unread}"


@pytest.mark.slow
def test_every_field_of_a_workers_settings_is_read() -> None:
    trees = sources()
    used = {name for tree in trees for name in attributes_read(tree)}
    unread = {
        f"{owner}.{field}"
        for tree in trees
        for owner, field in fields(tree)
        if owner.endswith(("Config", "Settings")) and field not in used
    }
    assert not unread, f"fields that nothing reads: {unread}"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('values["a.b"]', ["a.b"]),
        ('config.integer("a.b")', ["a.b"]),
        ('A: Final = "a.b"', ["a.b"]),
        ('for name in ("a.b", "c"): ...', ["a.b", "c"]),
        ('Setting("a.b", 1)', []),
        ('integer("a.b", 1)', []),
        ('LIVE = {"a.b"}', []),
        ('values["a.b"] = 1', []),
    ],
)
def test_the_test_can_fail(source: str, names: list[str]) -> None:
    assert list(names_read(ast.parse(source))) == names
