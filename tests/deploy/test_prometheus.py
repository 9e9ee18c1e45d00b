"""Goal: rules, dashboard and runbooks agree with the metrics that there are, and with each other.

promtool's own tests of the rules are deploy/prometheus/rules_test.yml; they run where promtool is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.telemetry.metric_table import METRICS
from sidecar.tools.pages.dashboard import COLUMNS, dashboard
from tests.telemetry.promtool import needs_promtool, promtool

yaml = pytest.importorskip("yaml")  # of the [dev] extra; an older environment of a clone lacks it

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
SERIES = {
    row.name + suffix
    for row in METRICS
    for suffix in (("_bucket", "_sum", "_count") if row.kind == "histogram" else ("",))
}
BOARD_FILE = ROOT / "deploy" / "grafana" / "dashboard.json"
BOARD: dict[str, Any] = json.loads(BOARD_FILE.read_text())


def graphs() -> Iterator[dict[str, Any]]:
    for panel in BOARD["panels"]:
        yield from panel.get("panels", [panel])


def expressions() -> list[str]:
    return [rule["expr"] for rule in RULES] + [
        target["expr"] for panel in graphs() for target in panel["targets"]
    ]


def unknown(expression: str) -> set[str]:
    names = set(re.findall(r"\b(?:kafka_sidecar|process)[_:][a-z_0-9:]*", expression))
    return names - SERIES - RECORDED


def test_every_series_that_is_asked_for_exists() -> None:
    assert {name for each in expressions() for name in unknown(each)} == set()
    missing = "kafka_sidecar_" + "nothing_total"
    assert unknown(f"rate({missing}[5m]) / kafka_sidecar_up") == {missing}


def test_labels_that_are_asked_for_exist() -> None:
    labels = {label for row in METRICS for label in row.labels} | {"instance", "job", "le"}
    for each in expressions():
        asked = set(re.findall(r"(?:by|without) \(([a-z, ]+)\)", each))
        matched = set(re.findall(r"[{,]\s*([a-z]+)\s*(?:=~|!~|!=|=)", each))
        assert {word for words in asked for word in words.split(", ")} | matched <= labels, each


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_a_page_and_a_test(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    prefix = "https://github.com/kafka-sidecar/kafka-sidecar/blob/main/"
    url = alert["annotations"]["runbook_url"]
    assert url.startswith(prefix)
    page = (ROOT / url.removeprefix(prefix)).read_text()
    assert page.startswith(f"# {name}\n") and "\n## Look\n" in page and "\n## Do\n" in page
    assert f"({name}.md)" in (ROOT / "docs" / "runbooks" / "README.md").read_text()
    assert alert["labels"]["severity"] in {"page", "ticket"} and alert["annotations"]["summary"].endswith(".")
    assert f'alertname="{name}"' in (PROMETHEUS / "rules_test.yml").read_text()


def counters_behind(expression: str) -> set[str]:
    """The counters that an alert's expression asks, also by way of recording rules."""
    behind = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
    names = set(re.findall(r"\bkafka_sidecar[_:][a-z_0-9:]*", expression))
    asked = {name for name in names if name.endswith("_total")}
    return asked.union(*(counters_behind(behind[name]) for name in names & behind.keys()))


def test_an_alert_on_counters_is_tested_with_series_that_begin_with_a_burst() -> None:
    """``increase()`` sees no gain in a series that is born with its last value."""
    tests = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
    burst = next(each for each in tests if each["name"].endswith("when its series begins with a burst"))
    born = {
        re.split(r"[{]", each["series"])[0]
        for each in burst["input_series"]
        if re.fullmatch(r"_x\d+ [1-9]\d*x\d+", each["values"])
    }
    expected = {sample["labels"] for check in burst["promql_expr_test"] for sample in check["exp_samples"]}
    on_counters = {alert["alert"]: counters_behind(alert["expr"]) for alert in ALERTS}
    on_counters = {name: asked for name, asked in on_counters.items() if asked}
    assert len(on_counters) == 5, "the alerts on counters are found"
    for name, asked in on_counters.items():
        assert f'{{alertname="{name}"}}' in expected and asked <= born, name
    for each in ALERTS:
        assert "increase(" not in each["expr"] and "rate(" not in each["expr"], (
            "kafka_sidecar:*:gain counts births"
        )


def test_every_page_has_its_alert() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README"}
    assert pages == {alert["alert"] for alert in ALERTS}


def test_links_between_runbooks_lead_somewhere() -> None:
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_dashboard_is_what_the_table_says() -> None:
    assert dashboard() == BOARD, (
        "print it again: .demo/venv/bin/python -m sidecar.tools.pages.dashboard > deploy/grafana/dashboard.json"
    )
    shown = " ".join(target["expr"] for panel in graphs() for target in panel["targets"])
    assert all(re.search(rf"\b{row.name}(_bucket)?\b", shown) for row in METRICS)


def test_panels_do_not_overlap() -> None:
    """As Grafana needs it: ids of their own, within the grid, nothing over another."""
    ids = [panel["id"] for panel in (*BOARD["panels"], *(each for each in graphs()))]
    open_panels = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
    assert len(set(ids)) == len(ids) - len(open_panels), "the open ones are in both lists"
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells
        cells |= own


def test_the_rules_are_loaded() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert config["rule_files"] == ["rules.yml"]
    compose = (ROOT / "deploy" / "docker" / "compose.yaml").read_text()
    assert "../prometheus/rules.yml:/etc/prometheus/rules.yml:ro" in compose


@pytest.mark.slow
@needs_promtool
def test_promtool_takes_the_rules_and_their_tests() -> None:
    promtool(["check", "config", PROMETHEUS / "prometheus.yml"])
    promtool(["test", "rules", PROMETHEUS / "rules_test.yml"])


@needs_promtool
def test_promtool_takes_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:number{number}", "expr": each.replace("$instance", ".*")}
        for number, each in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool(["check", "rules", file])
