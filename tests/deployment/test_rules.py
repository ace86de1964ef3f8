"""Rules and dashboard: what they ask for exists, and the alerts fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deployment.conftest import CHART, DOCKER, ROOT
from tests.deployment.expressions import dashboard, observed, rules

_RULES = CHART / "files" / "rules.yaml"
_DASHBOARD = CHART / "files" / "dashboard.json"
_ALERTS = {"RoseRefusesRequests", "RoseOnlineSlow", "RoseServerDown", "RoseEngineStalled", "RoseEngineSilent"}


def test_every_metric_that_is_asked_for_is_one_of_ours() -> None:
    section = (ROOT / "README.md").read_text().split("## Metrics", 1)[1].split("\n## ", 1)[0]
    ours = set(re.findall(r"`(rose_\w+)`", section))
    asked = " ".join([*(rule["expr"] for rule in rules(_RULES)), *(text for _, text in dashboard(_DASHBOARD))])
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\brose_\w+", asked)}
    assert names <= ours
    assert len(names) > 20


def test_an_alert_without_its_limits_is_what_it_observes() -> None:
    assert observed("a:b > 0 and c:d == 0") == ["a:b", "c:d"]
    assert observed('a{lane="online"} > 0.25') == ['a{lane="online"}']


def test_alerts_say_what_to_do() -> None:
    alerts = {rule["alert"]: rule for rule in rules(_RULES) if "alert" in rule}
    assert set(alerts) >= _ALERTS | {"RosePaddingWaste", "RoseGraphMisses"}
    assert all({"summary", "action"} == set(alert["annotations"]) for alert in alerts.values())


def test_dashboard_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads(_DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_every_alert_has_a_unit_test() -> None:
    cases = yaml.safe_load((DOCKER / "prometheus" / "rules_test.yaml").read_text())["tests"]
    fired = {check["alertname"] for case in cases for check in case["alert_rule_test"] if check["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules(_RULES) if "alert" in rule}


@pytest.mark.slow
def test_promtool_is_content(promtool: Path, tmp_path: Path) -> None:
    for command in (
        ["check", "rules", str(_RULES)],
        ["test", "rules", str(DOCKER / "prometheus" / "rules_test.yaml")],
    ):
        done = subprocess.run([str(promtool), *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    config = (DOCKER / "prometheus" / "prometheus.yml").read_text().replace("rules.yaml", str(_RULES))
    (tmp_path / "prometheus.yml").write_text(config)
    command = [str(promtool), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
