"""docs/wire.md says what client_stub/contract/wire.py does, and names every kind, code and number of it."""

from __future__ import annotations

from pathlib import Path

from client_stub.contract.wire import Kind, LocalCode
from sidecar.tools.pages.wire import wire_markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"


def test_the_page_of_the_wire_is_what_the_contract_says() -> None:
    assert PAGE.read_text() == wire_markdown(), (
        "print it again: .demo/venv/bin/python -m sidecar.tools.pages.wire > docs/wire.md"
    )


def test_the_page_of_the_wire_has_every_kind_and_code() -> None:
    page = PAGE.read_text()
    for kind in Kind:
        assert f"\n| {kind.value} | `{kind.name}` | " in page
    for code in LocalCode:
        assert f"`{code.name}`" in page
