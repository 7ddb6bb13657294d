"""The Helm chart: linted, rendered in its variants, valid for every Kubernetes from 1.28, and what it grants.

Rendering and validation need `make test-deploy`; what the plain manifests grant is checked always.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from deploy.render import CHART, PLAIN, plain, rendered

needs_renderer = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None,
    reason="needs helm-python-sdk: make test-deploy",
)
needs_schemas = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="needs kubernetes-validate: make test-deploy",
)
OLDEST_MINOR = 28

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "image": {
            "registry": "registry.example/gpu",
            "digests": {"agent": "sha256:" + "a" * 64},
            "pullSecrets": [{"name": "pull"}],
        },
        "collector": {
            "replicas": 2,
            "postgresPort": True,
            "settings": 'keep_samples_days = 30\nprices_file = "/etc/gpuwarden/files/prices.toml"\n',
            "files": {"prices.toml": '[energy]\nusd_per_kwh = 0.15\n# a "quoted" word: {{ not a template }}\n'},
            "secretFiles": "notify",
            "storage": {"className": "fast", "size": "1Ti"},
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "env": [{"name": "AWS_REGION", "value": "x"}],
            "annotations": {"a": "b"},
        },
        "agents": {
            "parents": True,
            "settings": '[labels]\ncluster = "a"\n',
            "kmsg": True,
            "privileged": True,
            "annotations": {"a": "b"},
            "env": [{"name": "GPUWARDEN_AGENT_LOG_LEVEL", "value": "debug"}],
            "kinds": {
                "nvidia": {"enabled": True, "libraries": "/usr/lib/x86_64-linux-gnu", "runtimeClass": ""},
                "amd": {"enabled": True, "devices": ["/dev/kfd", "/dev/dri"]},
            },
        },
        "networkPolicy": {
            "collectorFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}],
            "agentsFrom": [{"podSelector": {}}],
        },
        "serviceMonitor": {"enabled": True, "tokenSecret": "prometheus", "labels": {"release": "p"}},
    },
    "enrolment": {"agents": {"enrolmentSecret": "enrolment"}, "collector": {"tls": {"insecure": True}}},
    "capabilities": {"agents": {"capabilities": ["SYS_PTRACE"]}},
    "without root": {"agents": {"root": False, "kubernetes": "off", "hostPID": False, "exporter": False}},
    "insecure": {"collector": {"tls": {"insecure": True}}},
    "agents alone": {
        "collector": {"enabled": False},
        "agents": {"collectorUrl": "https://c:8750", "caSecret": "-"},
    },
    "collector alone": {"agents": {"enabled": False}},
    "no policies": {"networkPolicy": {"enabled": False}, "collector": {"podDisruptionBudget": False}},
}  # fmt: skip
REFUSED = {
    "no certificate": ({"collector": {"tls": {"secret": ""}}}, "set collector.tls.secret"),
    "no collector": ({"collector": {"enabled": False}}, "set agents.collectorUrl"),
    "useless capabilities": (
        {"agents": {"root": False, "capabilities": ["SYS_PTRACE"]}},
        "needs agents.root",
    ),
    "a token that is forgotten": (
        {"agents": {"root": False, "enrolmentSecret": "e"}},
        "needs agents.root",
    ),
    "kmsg": ({"agents": {"kmsg": True}}, "needs agents.privileged"),
    "unknown": ({"agents": {"hostPid": True}}, "hostPid"),
    "another capability": ({"agents": {"capabilities": ["SYS_ADMIN"]}}, "capabilities"),
    "a number": ({"collector": {"replicas": "two"}}, "replicas"),
}


def documents(files: Mapping[str, str]) -> list[dict[str, Any]]:
    return [one for text in files.values() for one in yaml.safe_load_all(text) if one]


def named(found: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (one for one in found if one["kind"] == kind)


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(only)


@needs_renderer
@pytest.mark.parametrize("name", VARIANTS)
def test_the_chart_has_nothing_to_complain_about(name: str) -> None:
    from helm_python import chart

    report = chart.lint(CHART, VARIANTS[name], strict=True, namespace="gpuwarden")
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.slow
@needs_renderer
@needs_schemas
@pytest.mark.parametrize("name", VARIANTS)
def test_every_kubernetes_takes_what_is_rendered(name: str) -> None:
    import kubernetes_validate

    newest = int(kubernetes_validate.latest_version().split(".")[1])
    assert newest >= 34
    found = documents(rendered(VARIANTS[name]))
    assert len(found) > 3
    for minor in range(OLDEST_MINOR, newest + 1):
        for one in found:
            if not one["apiVersion"].startswith("monitoring.coreos.com/"):
                kubernetes_validate.validate(one, f"1.{minor}", strict=True)


@needs_renderer
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_cannot_work_are_refused_with_a_reason(name: str) -> None:
    from helm_python.errors import HelmError

    values, why = REFUSED[name]
    with pytest.raises(HelmError, match=why):
        rendered(values)


@needs_renderer
def test_texts_of_users_arrive_as_they_are() -> None:
    values = VARIANTS["everything"]["collector"]
    (config,) = [
        one
        for one in named(documents(rendered(VARIANTS["everything"])), "ConfigMap")
        if one["metadata"]["name"].endswith("collector")
    ]
    assert config["data"] == {"collector.toml": values["settings"], **values["files"]}


@needs_renderer
def test_the_plain_manifests_are_the_charts() -> None:
    assert {path.name: path.read_text() for path in PLAIN.glob("*.yaml")} == plain()


@needs_renderer
@pytest.mark.parametrize(
    ("ask", "resources"),
    [
        ("auto", {"nodes/pods", "pods", "nodes"}),
        ("kubelet", {"nodes/pods"}),
        ("api", {"pods", "nodes"}),
        ("off", set()),
    ],
)
def test_rights_are_those_that_the_setting_needs(ask: str, resources: set[str]) -> None:
    found = documents(rendered({"agents": {"kubernetes": ask}}))
    rules = [rule for role in named(found, "ClusterRole") for rule in role["rules"]]
    assert {name for rule in rules for name in rule["resources"]} == resources
    assert {verb for rule in rules for verb in rule["verbs"]} <= {"get", "list"}
    (daemon, *_) = named(found, "DaemonSet")
    assert daemon["spec"]["template"]["spec"]["automountServiceAccountToken"] is (ask != "off")


@needs_renderer
def test_with_an_enrolment_no_agent_has_the_token_of_all() -> None:
    from gpuwarden_cli.main import parser

    for daemon in named(documents(rendered(VARIANTS["enrolment"])), "DaemonSet"):
        pod = daemon["spec"]["template"]["spec"]
        secrets = [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v]
        assert secrets == ["enrolment"]
        (enroll,) = pod["initContainers"]
        mounted = {m["name"]: m["mountPath"] for m in enroll["volumeMounts"]}
        assert mounted == {
            "state": "/var/lib/gpuwarden-agent",
            "enrolment": "/etc/gpuwarden/enrolment",
        }
        assert "enrolment" not in {m["name"] for m in container(daemon)["volumeMounts"]}
        files = [
            {e["name"]: e.get("value") for e in one["env"]}["GPUWARDEN_AGENT_TOKEN_FILE"]
            for one in (enroll, container(daemon))
        ]
        assert files == ["/var/lib/gpuwarden-agent/agent.token"] * 2
        args = parser().parse_args(enroll["command"][1:])
        assert args.if_new and args.allow_insecure and args.node == "$(GPUWARDEN_AGENT_NODE)"


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    return documents({path.name: path.read_text() for path in sorted(PLAIN.glob("*.yaml"))})


def test_the_collector_runs_as_the_restricted_profile_asks(manifests: list[dict[str, Any]]) -> None:
    (stateful,) = named(manifests, "StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert container(stateful)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_agents_have_no_more_than_the_page_says(manifests: list[dict[str, Any]]) -> None:
    daemons = list(named(manifests, "DaemonSet"))
    assert len(daemons) == 2
    for daemon in daemons:
        pod = daemon["spec"]["template"]["spec"]
        assert container(daemon)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        paths = {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
        assert paths == {"/var/lib/gpuwarden-agent", "/var/lib/kubelet/pod-resources"}
        assert (pod["hostPID"], pod.get("hostNetwork"), pod.get("hostIPC")) == (True, None, None)


def test_every_variable_of_ours_is_a_setting(manifests: list[dict[str, Any]]) -> None:
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_collector.settings import CollectorSettings

    known = {
        f"GPUWARDEN_{part}_{name.upper()}"
        for part, settings in (("AGENT", AgentSettings), ("COLLECTOR", CollectorSettings))
        for name in settings.__dataclass_fields__
    }
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"GPUWARDEN_[A-Z_]+", text))
    assert used - known == set()
    assert {"GPUWARDEN_AGENT_NODE", "GPUWARDEN_COLLECTOR_TLS_CERT"} <= used


def test_no_service_of_the_namespace_becomes_a_setting(manifests: list[dict[str, Any]]) -> None:
    for kind in ("DaemonSet", "StatefulSet"):
        for one in named(manifests, kind):
            assert one["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_selectors_find_the_pods(manifests: list[dict[str, Any]]) -> None:
    labels = [
        one["spec"]["template"]["metadata"]["labels"]
        for kind in ("DaemonSet", "StatefulSet")
        for one in named(manifests, kind)
    ]
    selectors = [one["spec"]["selector"] for one in named(manifests, "Service")]
    selectors += [
        one["spec"]["podSelector"]["matchLabels"] for one in named(manifests, "NetworkPolicy")
    ]
    assert len(selectors) == 5
    for selector in selectors:
        assert any(selector.items() <= found.items() for found in labels), selector


def test_the_chart_has_the_products_version() -> None:
    import tomllib

    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]
