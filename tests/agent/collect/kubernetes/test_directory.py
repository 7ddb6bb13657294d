"""Names from a real kubelet's and API server's answers over HTTPS, and what happens without them."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.agent.collect.kubernetes.fake_cluster import (
    UID,
    Account,
    ClusterServer,
    answer_of,
    environ_of,
    owner,
    pod,
    served,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.kubernetes import client
from gpuwarden_agent.collect.kubernetes.client import Server
from gpuwarden_agent.collect.kubernetes.directory import (
    AFTER_FAILURE_S,
    AGAIN_AFTER_S,
    KEPT_S,
    NEW_POD_EVERY_S,
    PodDirectory,
    pod_directory,
)
from gpuwarden_agent.settings import AgentSettings

PLAIN = UID.replace("-", "")
NODE = json.dumps(
    {"kind": "PartialObjectMetadata", "metadata": {"labels": {"rack": "r7"}}}
).encode()
PODS, NODES = "/api/v1/pods", "/api/v1/nodes/gpu-7"
BERT = pod(
    "bert-0", labels={"user": "ada", "team": "ml"}, ownerReferences=[owner("PyTorchJob", "bert")]
)


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path / "account")


@pytest.fixture
def kubelet(account: Account) -> Iterator[ClusterServer]:
    with served(account) as server:
        server.answers["/pods"] = answer_of([BERT])
        yield server


@pytest.fixture
def api(account: Account) -> Iterator[ClusterServer]:
    with served(account) as server:
        server.answers |= {PODS: answer_of([BERT]), NODES: NODE}
        yield server


@pytest.fixture
def made(account: Account, kubelet: ClusterServer, api: ClusterServer, clock: ManualClock) -> Any:
    def make(ask: str = "auto", address: str = "", **more: Any) -> PodDirectory:
        source = AgentSettings(
            kubernetes=ask,
            node="gpu-7",
            **more,
            pod_user_labels=("user",),
            pod_team_labels=("team",),
        )
        found = pod_directory(
            source,
            clock,
            environ_of(api),
            account_dir=account.folder,
            kubelet=address or kubelet.address,
        )
        assert found is not None
        return found

    return make


def answered(directory: PodDirectory) -> bool:
    found = directory.by_uid(PLAIN)
    return found is not None and found.workload == "PyTorchJob/bert"


def test_the_kubelet_names_pods_and_the_api_server_labels_the_node(
    made: Any, kubelet: ClusterServer, api: ClusterServer
) -> None:
    directory = made()
    assert directory.by_pod("research/bert-0") is None
    directory.refresh()
    named = directory.by_pod("research/bert-0")
    assert named is not None
    assert (named.workload, named.user, named.team) == ("PyTorchJob/bert", "ada", "ml")
    assert directory.node_labels == {"rack": "r7"}
    assert [path for path, _ in kubelet.requests] == ["/pods"]
    assert [path for path, _ in api.requests] == [NODES]


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_where_the_kubelet_refuses_the_api_server_is_asked_for_no_more_than_metadata(
    status: int, made: Any, kubelet: ClusterServer, api: ClusterServer
) -> None:
    kubelet.fault = lambda path: (status, b"Forbidden")
    directory = made()
    directory.refresh()
    assert answered(directory)
    assert not directory.failed
    path, accept = api.requests[0]
    assert path == f"{PODS}?fieldSelector=spec.nodeName%3Dgpu-7&resourceVersion=0"
    assert accept == "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def test_a_version_that_is_gone_is_asked_for_anew(made: Any, api: ClusterServer) -> None:
    api.fault = lambda path: (410, b"Gone") if "resourceVersion" in path else None
    directory = made("api")
    directory.refresh()
    assert answered(directory)


def test_a_token_that_was_replaced_is_read_again(
    made: Any, account: Account, kubelet: ClusterServer, clock: ManualClock
) -> None:
    directory = made("kubelet")
    kubelet.token = "second"
    directory.refresh()
    assert not answered(directory)
    assert any("token is refused" in why for why in directory.failed)
    account.write("second\n")
    clock.advance(AFTER_FAILURE_S)
    directory.refresh()
    assert answered(directory)


FAULTS = {
    "forbidden": ({"fault": lambda path: (403, b"")}, "HTTP 403 Forbidden: grant the service account"),
    "redirect": ({"fault": lambda path: (302, b"")}, "HTTP 302"),
    "garbage": ({"fault": lambda path: (200, b"<html>")}, "no answer that can be understood"),
    "nested": ({"fault": lambda path: (200, b"[" * 100_000)}, "no answer that can be understood"),
    "hanging": ({"hang_s": 1.0}, "no answer within 0.2 s"),
    "cut short": ({"cut": True}, "cut short"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_learned_is_said_once_and_costs_names_only(
    name: str, made: Any, kubelet: ClusterServer, clock: ManualClock,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fault, why = FAULTS[name]
    for attribute, value in fault.items():
        setattr(kubelet, attribute, value)
    directory = made("kubelet")
    directory._kubelet._timeout_s = 0.2
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            directory.refresh()
            clock.advance(AFTER_FAILURE_S)
    assert directory.by_uid(PLAIN) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    (reason,) = directory.failed
    assert why in reason
    assert directory.failed[reason] == 3
    kubelet.fault, kubelet.hang_s, kubelet.cut = (lambda path: None), 0.0, False
    directory._kubelet._timeout_s = 5.0
    with caplog.at_level(logging.INFO):
        directory.refresh()
    assert answered(directory)
    assert caplog.records[-1].getMessage() == "Kubernetes answers again"


def test_a_certificate_of_somebody_else_gets_no_token(
    made: Any, account: Account, clock: ManualClock
) -> None:
    with served(account, authority=trustme.CA()) as stranger:
        stranger.answers["/pods"] = answer_of([BERT])
        directory = made("kubelet", stranger.address)
        directory.refresh()
        assert not stranger.requests
        assert any("set kubernetes to api" in why for why in directory.failed)


JOB = "/apis/batch/v1/namespaces/research/jobs/nightly-1"


def test_what_a_job_belongs_to_is_asked_for_once(
    made: Any, kubelet: ClusterServer, api: ClusterServer, clock: ManualClock
) -> None:
    job = pod("nightly-1-x", ownerReferences=[owner("Job", "nightly-1", "batch/v1")])
    alone = pod("alone-x", uid="1" * 32, ownerReferences=[owner("Job", "alone", "batch/v1")])
    kubelet.answers["/pods"] = answer_of([job, alone])
    nightly = {"metadata": {"ownerReferences": [owner("CronJob", "nightly", "batch/v1")]}}
    api.answers[JOB] = json.dumps(nightly).encode()
    api.answers[JOB.replace("nightly-1", "alone")] = b'{"metadata": {}}'
    directory = made(kubernetes_parents=True)
    for _ in range(2):
        directory.refresh()
        clock.advance(AGAIN_AFTER_S)
    found = [directory.by_pod(f"research/{name}").workload for name in ("nightly-1-x", "alone-x")]
    assert found == ["CronJob/nightly", "Job/alone"]
    assert [path for path, _ in api.requests].count(JOB) == 1


def test_without_the_right_to_jobs_they_stay_jobs(
    made: Any, kubelet: ClusterServer, api: ClusterServer
) -> None:
    jobs = [
        pod(name, uid=str(n) * 32, ownerReferences=[owner("Job", name, "batch/v1")])
        for n, name in enumerate(("a", "b"))
    ]
    kubelet.answers["/pods"] = answer_of(jobs)
    api.fault = lambda path: (403, b"") if "/jobs/" in path else None
    directory = made(kubernetes_parents=True)
    directory.refresh()
    assert directory.by_pod("research/a").workload == "Job/a"
    assert len([path for path, _ in api.requests if "/jobs/" in path]) == 1
    assert directory.node_labels == {"rack": "r7"}


def test_an_answer_that_is_too_long_is_none(
    made: Any, monkeypatch: pytest.MonkeyPatch, kubelet: ClusterServer
) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 100)
    directory = made("kubelet")
    directory.refresh()
    assert any("too long" in why for why in directory.failed)


def test_an_empty_token_and_no_authority_are_said(made: Any, account: Account) -> None:
    directory = made("kubelet")
    account.write("")
    directory.refresh()
    assert any("no token" in why for why in directory.failed)
    account.write("first")
    (account.folder / "ca.crt").unlink()
    other = made("kubelet")
    other.refresh()
    assert any("ca.crt" in why for why in other.failed)


def test_a_pod_that_ended_is_known_for_its_last_rows(
    made: Any, kubelet: ClusterServer, clock: ManualClock
) -> None:
    directory = made("kubelet")
    directory.refresh()
    kubelet.answers["/pods"] = answer_of([])
    clock.advance(AGAIN_AFTER_S)
    directory.refresh()
    assert answered(directory)
    clock.advance(KEPT_S)
    directory.refresh()
    assert directory.by_uid(PLAIN) is None
    assert directory.by_pod("research/bert-0") is None


def test_a_new_pod_is_asked_for_at_once_and_one_that_nobody_knows_not_again(
    made: Any, kubelet: ClusterServer, clock: ManualClock
) -> None:
    directory = made("kubelet")
    directory.refresh()
    clock.advance(NEW_POD_EVERY_S)
    directory.refresh()
    assert len(kubelet.requests) == 1
    assert directory.by_uid("f" * 32) is None
    directory.refresh()
    assert len(kubelet.requests) == 2
    for _ in range(3):
        clock.advance(NEW_POD_EVERY_S)
        assert directory.by_uid("f" * 32) is None
        directory.refresh()
    assert len(kubelet.requests) == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("n1", "https://n1:10250"),
        ("10.0.0.1:99", "https://10.0.0.1:99"),
        ("fd00::1", "https://[fd00::1]:10250"),
        ("[fd00::1]:9", "https://[fd00::1]:9"),
    ],
)
def test_a_server_without_a_port_gets_the_default_one(text: str, shown: str) -> None:
    assert str(Server.parse(text, 10250)) == shown


@pytest.mark.parametrize("text", ["https://n1", "a b", "n1:port"])
def test_what_is_no_address_names_its_variable(
    text: str, account: Account, clock: ManualClock
) -> None:
    source = AgentSettings(kubernetes="api", node="n")
    environ = {"KUBERNETES_SERVICE_HOST": text}
    with pytest.raises(ValueError, match="KUBERNETES_SERVICE_HOST: "):
        pod_directory(source, clock, environ, account_dir=account.folder)


def test_a_host_without_service_account_asks_nobody(tmp_path: Path, clock: ManualClock) -> None:
    assert pod_directory(AgentSettings(node="n"), clock, {}, account_dir=tmp_path) is None


def test_names_of_pods_that_are_off_ask_nobody(account: Account, clock: ManualClock) -> None:
    source = AgentSettings(kubernetes="off", node="n")
    assert pod_directory(source, clock, {}, account_dir=account.folder) is None
