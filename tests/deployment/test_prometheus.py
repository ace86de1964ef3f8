"""A real Prometheus beside the real server under load: every expression of rules and dashboard has data."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import yaml

from rose_ensemble.server_process import Endpoints
from tests.deployment.conftest import CHART, DOCKER
from tests.deployment.expressions import dashboard, observed, rules
from tests.support.waiting import wait_until
from tests.support.wire import embed

pytestmark = [pytest.mark.slow, pytest.mark.alone]
_RULES = CHART / "files" / "rules.yaml"


class _Prometheus:
    def __init__(self, address: str) -> None:
        self._base = f"http://{address}/api/v1/"

    def get(self, path: str, **query: str) -> Any:
        url = f"{self._base}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def is_up(self) -> bool:
        try:
            return bool(self.get("query", query='up{job="rose"} == 1')["result"])
        except OSError:
            return False

    def series(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found


@pytest.fixture(scope="module")
def asked(server: Endpoints, prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Prometheus]:
    """Prometheus with the configuration that compose uses, but for address and interval; half a minute of load."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(_RULES)]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [server.metrics]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = Endpoints.free("127.0.0.1").http
    command = [str(prometheus), f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={folder / 'data'}"]
    stop = threading.Event()
    loads = [threading.Thread(target=_load, args=(server.grpc, size, stop)) for size in (1, 40)]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        found = _Prometheus(address)
        try:
            wait_until(found.is_up, "Prometheus has seen the server")
            for load in loads:
                load.start()
            time.sleep(30)  # two of the windows that the dashboard's rates look back over
            yield found
        finally:
            stop.set()
            for load in loads:
                load.join()
            process.terminate()


def _load(address: str, size: int, stop: threading.Event) -> None:
    with grpcclient.InferenceServerClient(address) as client:
        while not stop.is_set():
            embed(client, ["The ferry leaves at dawn."] * size)


def test_every_panel_has_data(asked: _Prometheus) -> None:
    empty = [(title, text) for title, text in dashboard(CHART / "files" / "dashboard.json") if not asked.series(text)]
    assert empty == []


def test_every_rule_has_data(asked: _Prometheus) -> None:
    texts = [text for rule in rules(_RULES) for text in (observed(rule["expr"]) if "alert" in rule else [rule["expr"]])]
    assert [text for text in texts if not asked.series(text)] == []
    recorded = [rule["record"] for rule in rules(_RULES) if "record" in rule]
    assert [name for name in recorded if not asked.series(name)] == []


def test_every_rule_is_healthy_and_no_critical_alert_fires(asked: _Prometheus) -> None:
    found = [rule for group in asked.get("rules")["groups"] for rule in group["rules"]]
    assert len(found) == len(rules(_RULES))
    assert [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] != "ok"] == []
    firing = {rule["name"] for rule in found if rule.get("state") == "firing"}
    assert firing & {"RoseServerDown", "RoseEngineStalled", "RoseEngineSilent"} == set()


def test_rates_are_those_of_the_load(asked: _Prometheus) -> None:
    lanes = {
        s["metric"]["lane"]: float(s["value"][1])
        for s in asked.series("sum by (lane) (rate(rose_requests_total[15s]))")
    }
    assert lanes["online"] > 0
    assert lanes["bulk"] > 0  # 40 texts are more than 32
    [padding] = asked.series("rose:padding:ratio_rate5m")
    assert 0 <= float(padding["value"][1]) < 1
