"""Goal: the page is small, complete in itself, and lets nothing else run or be asked."""

from __future__ import annotations

import re

from sidecar.telemetry.page import PAGE, PAGE_POLICY, oldest_held, with_counters

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


def test_with_nothing_held_no_oldest_record_is_shown() -> None:
    """The worker's report is up to a second old; the counters are of now."""
    words = "oldest held record 8 s, orders-2, paused by an operator. `kafka-sidecar resume` lets it go on."
    oldest = {"topic": "orders", "partition": 2, "seconds": 3.0, "reason": "no leader"}
    report = {"sentence": "", "notices": ["broker 1 throttles: 7 ms.", words], "oldest_held": oldest}
    assert with_counters(report, {"records_held": 1})["notices"] == report["notices"]
    assert with_counters(report, {})["notices"] == report["notices"], "of a segment that nobody may read"
    shown = with_counters(report, {"records_held": 0})
    assert (shown["notices"], shown["oldest_held"], oldest_held(shown)) == (report["notices"][:1], None, "")


def test_its_policy_names_its_own_script_and_style_alone() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in PAGE_POLICY.split(";"))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["style-src"])
    assert "unsafe" not in PAGE_POLICY
