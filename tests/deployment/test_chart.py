"""The Helm chart: every manifest it renders, against Kubernetes' schemas, and what its values are for."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from tests.deployment.conftest import CHART

helm = pytest.importorskip("helm_python.chart", reason="pip install 'rose-on-triton[deploy]'")
jsonschema = pytest.importorskip("jsonschema", reason="pip install 'rose-on-triton[deploy]'")
yaml = pytest.importorskip("yaml", reason="pip install 'rose-on-triton[deploy]'")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install 'rose-on-triton[deploy]'")

_VERSIONS = ("1.28", "1.31", "1.34")
_ALL = {"serviceMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"}}

# Kubernetes' schemas do not cover custom resources. These hold what the chart uses of them, after the operators' API
# references, and nothing else: a field that is misspelt is an error.
_LABEL_NAME = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}
_CUSTOM: dict[str, dict[str, Any]] = {
    "monitoring.coreos.com/v1 ServiceMonitor": {
        "type": "object",
        "additionalProperties": False,
        "required": ["selector", "endpoints"],
        "properties": {
            "jobLabel": {"type": "string"},
            "selector": {"type": "object", "additionalProperties": False, "properties": {"matchLabels": {}}},
            "endpoints": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "port": {"type": "string"},
                        "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                        "honorLabels": {"type": "boolean"},
                        "relabelings": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {
                                    "sourceLabels": {"type": "array", "items": _LABEL_NAME},
                                    "targetLabel": _LABEL_NAME,
                                },
                            },
                        },
                    },
                },
            },
        },
    },
    "monitoring.coreos.com/v1 PrometheusRule": {
        "type": "object",
        "additionalProperties": False,
        "required": ["groups"],
        "properties": {
            "groups": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["name", "rules"],
                    "properties": {
                        "name": {"type": "string"},
                        "rules": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["expr"],
                                "properties": {
                                    "record": {"type": "string"},
                                    "alert": {"type": "string"},
                                    "expr": {"type": "string"},
                                    "for": {"type": "string", "pattern": "^[0-9]+(s|m|h)$"},
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
                                },
                            },
                        },
                    },
                },
            }
        },
    },
    "keda.sh/v1alpha1 ScaledObject": {
        "type": "object",
        "additionalProperties": False,
        "required": ["scaleTargetRef", "triggers"],
        "properties": {
            "scaleTargetRef": {"type": "object", "additionalProperties": False, "properties": {"name": {}}},
            "minReplicaCount": {"type": "integer"},
            "maxReplicaCount": {"type": "integer"},
            "cooldownPeriod": {"type": "integer"},
            "triggers": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["type", "metadata"],
                    "properties": {
                        "type": {"const": "prometheus"},
                        "metricType": {"enum": ["AverageValue", "Value"]},
                        "metadata": {
                            "type": "object",
                            "additionalProperties": {"type": "string"},
                            "required": ["serverAddress", "query", "threshold"],
                        },
                    },
                },
            },
        },
    },
}


def _render(values: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Manifests by kind and name."""
    rendered = helm.Chart.load(str(CHART)).render(values or {}, name="embed", namespace="search")
    documents = [
        document
        for path, text in rendered.items()
        if not path.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document is not None
    ]
    return {f"{document['kind']} {document['metadata']['name']}": document for document in documents}


def _check(manifest: dict[str, Any], version: str) -> None:
    kind = f"{manifest['apiVersion']} {manifest['kind']}"
    if kind in _CUSTOM:
        jsonschema.validate(manifest["spec"], _CUSTOM[kind])
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


_CASES: list[dict[str, Any]] = [
    {},
    {"monitoring": _ALL, "autoscaling": {"kind": "keda"}},
    {"monitoring": _ALL, "autoscaling": {"kind": "hpa"}, "gpusPerReplica": 4},
    {
        "gpusPerReplica": 0,
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
        "modelVolume": {"existingClaim": "checkpoints", "storageClassName": "fast"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"gpu": "h200"},
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"a": "b"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "extraArgs": ["--log-level=info"],
    },
    {"tracing": {"endpoint": "http://collector:4318"}, "networkPolicy": {"egress": [{"to": [{"podSelector": {}}]}]}},
]


@pytest.mark.parametrize(("index", "version"), list(product(range(len(_CASES)), _VERSIONS)))
def test_every_manifest_fits_its_schema(index: int, version: str) -> None:
    manifests = _render(_CASES[index])
    assert len(manifests) >= 4
    for manifest in manifests.values():
        _check(manifest, version)


def test_the_schemas_refuse_what_is_wrong() -> None:
    manifest = _render()["Deployment embed-rose"]
    manifest["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        _check(manifest, _VERSIONS[-1])
    monitor = _render(_CASES[1])["ServiceMonitor embed-rose"]
    monitor["spec"]["endpoints"][0]["honourLabels"] = True
    with pytest.raises(jsonschema.ValidationError):
        _check(monitor, _VERSIONS[-1])


def test_helm_lint_finds_nothing() -> None:
    report = helm.lint(str(CHART), strict=True)
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"models": []}, "models"),
        ({"models": [{"name": "a", "checkpoint": "relative"}]}, "checkpoint"),
        ({"autoscaling": {"kind": "vpa"}}, "autoscaling"),
        ({"replicas": 3}, "replicas"),
        ({"tracing": {"endpoint": "collector:4318"}}, "endpoint"),
        ({"replicaCount": 0}, "replicaCount"),
    ],
)
def test_values_that_are_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(Exception, match=named):
        helm.Chart.load(str(CHART)).validate_schema(values)


def test_a_pod_has_its_gpus_and_an_engine_on_each() -> None:
    container = _render({"gpusPerReplica": 2})["Deployment embed-rose"]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert "--device=cuda:0,cuda:1" in container["args"]
    container = _render({"gpusPerReplica": 0})["Deployment embed-rose"]["spec"]["template"]["spec"]["containers"][0]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert "--device=cpu" in container["args"]


def test_shared_memory_probes_and_time_to_answer() -> None:
    spec = _render({"shmSize": "3Gi"})["Deployment embed-rose"]["spec"]["template"]["spec"]
    shm = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "3Gi"}
    container = spec["containers"][0]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600
    assert {"readinessProbe", "livenessProbe"} <= set(container)
    assert spec["terminationGracePeriodSeconds"] > 120  # rose serve answers what was admitted for that long


def test_who_may_talk_to_whom() -> None:
    policy = _render()["NetworkPolicy embed-rose"]["spec"]
    assert policy["egress"] == []
    assert [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]] == [[8000, 8001], [8002]]


def test_tracing_is_off_until_a_collector_is_named() -> None:
    assert "env" not in _render()["Deployment embed-rose"]["spec"]["template"]["spec"]["containers"][0]
    rule = {"to": [{"podSelector": {}}], "ports": [{"port": 4318, "protocol": "TCP"}]}
    manifests = _render({"tracing": {"endpoint": "http://collector:4318"}, "networkPolicy": {"egress": [rule]}})
    container = manifests["Deployment embed-rose"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"} in container["env"]
    assert manifests["NetworkPolicy embed-rose"]["spec"]["egress"] == [rule]


def test_scaling_takes_the_replicas_over() -> None:
    assert _render()["Deployment embed-rose"]["spec"]["replicas"] == 1
    scaled = _render({"autoscaling": {"kind": "keda", "queuedTokensPerReplica": 1000}})
    assert "replicas" not in scaled["Deployment embed-rose"]["spec"]
    trigger = scaled["ScaledObject embed-rose"]["spec"]["triggers"][0]["metadata"]
    assert trigger["threshold"] == "1000"
    assert 'service="embed-rose"' in trigger["query"]


def _paths(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        nested = isinstance(value, dict) and value and prefix == "" and name not in ("resources", "affinity")
        found += _paths(value, f"{name}.") if nested else [prefix + name]
    return found


def test_the_readme_names_every_value() -> None:
    table = (CHART / "README.md").read_text()
    documented = set()
    for line in table.splitlines():
        names = re.findall(r"`([\w.]+)`", line.split("|")[1]) if line.startswith("| `") else []
        for name in names:
            documented.add(names[0].partition(".")[0] + name if name.startswith(".") else name)
    assert documented == set(_paths(yaml.safe_load((CHART / "values.yaml").read_text())))
