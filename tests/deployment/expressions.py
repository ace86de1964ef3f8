"""Every expression that Prometheus is asked by the rules and the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_COMPARISON = re.compile(r"\s*(?:==|>)\s*[\d.]+")


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def observed(expression: str) -> list[str]:
    """What an alert compares with its limits: it has a value even while the alert does not fire."""
    return [_COMPARISON.sub("", part).strip() for part in expression.split(" and ")]


def dashboard(path: Path) -> Iterator[tuple[str, str]]:
    """Panel and expression, as Grafana asks when all is chosen and a panel shows a few minutes."""
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "15s")
            yield panel["title"], expression.replace("$server", ".*").replace("$model", ".*")
