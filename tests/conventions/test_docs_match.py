"""Goal: pages that are printed from tables are what the tables say now."""

from __future__ import annotations

from pathlib import Path

from sidecar.cli.config_reference import reference_markdown

ROOT = Path(__file__).resolve().parents[2]


def test_configuration_reference() -> None:
    printed = reference_markdown()
    stored = (ROOT / "docs" / "configuration.md").read_text()
    assert stored == printed, (
        "print it again: .demo/venv/bin/kafka-sidecar config show --reference > docs/configuration.md"
    )
