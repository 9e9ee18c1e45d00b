"""Goal: the page is small, complete in itself, and lets nothing else run or be asked."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.controller.status.note import Runbook
from sidecar.telemetry.page import PAGE, PAGE_POLICY

TEXT = PAGE.decode()


def test_it_is_small_and_asks_for_nothing_outside() -> None:
    assert len(PAGE) <= 100_000
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", TEXT)
    assert not re.findall(r"""(?:src|href)=["'](?!/|data:)""", TEXT)
    assert "@import" not in TEXT and "url(" not in TEXT


def test_it_puts_in_text_and_never_markup() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert way not in TEXT, way
    assert not re.findall(r"""\s(?:on\w+|style)=["']""", TEXT), "the policy would refuse these"


def test_each_note_leads_to_a_page_that_exists() -> None:
    pages = {path.stem for path in (Path(__file__).parents[2] / "docs" / "runbooks").glob("*.md")}
    assert {str(each) for each in Runbook} - {""} <= pages
    assert Runbook.NONE.address == ""
    assert Runbook.BUG.address.endswith("/docs/runbooks/KafkaSidecarBug.md")


def test_its_policy_names_its_own_script_and_style_alone() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in PAGE_POLICY.split(";"))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["style-src"])
    assert "unsafe" not in PAGE_POLICY
