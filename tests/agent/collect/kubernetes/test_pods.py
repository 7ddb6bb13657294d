"""What pods are called and belong to, from answers of kubelets and API servers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.kubernetes.fake_cluster import UID, answer_of, owner, pod

from gpuwarden_agent.collect.kubernetes.pods import (
    LABELS_CHARS_MAX,
    PodNames,
    parse_labels,
    parse_pods,
    uid_of_cgroup,
    workload_of,
)
from gpuwarden_agent.settings import PodLabelNames

PLAIN = UID.replace("-", "")
NAMES = PodLabelNames(("user", "owner"), ("team",))


def only(*args: Any, **metadata: Any) -> PodNames:
    (found,) = parse_pods(answer_of([pod(*args, **metadata)]), NAMES).values()
    return found


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope",
        f"11:memory:/kubepods/besteffort/pod{UID}/{'b' * 64}\n10:cpu:/kubepods/besteffort/pod{UID}/{'b' * 64}",
        f"0::/../../kubepods-pod{UID.replace('-', '_')}.slice/crio-{'c' * 64}.scope",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{PLAIN}.slice/x",
    ],
)
def test_the_control_group_names_the_pod(cgroup: str) -> None:
    assert uid_of_cgroup(cgroup) == PLAIN


@pytest.mark.parametrize("cgroup", ["", "0::/user.slice", "0::/kubepods/podname/x"])
def test_a_process_outside_of_pods_has_none(cgroup: str) -> None:
    assert uid_of_cgroup(cgroup) is None


@pytest.mark.parametrize(
    ("labels", "owners", "workload"),
    [
        ({"pod-template-hash": "5d4"}, [owner("ReplicaSet", "llm-5d4", "apps/v1")], "Deployment/llm"),
        ({"rollouts-pod-template-hash": "9f"}, [owner("ReplicaSet", "web-9f", "apps/v1")], "Rollout/web"),
        ({}, [owner("ReplicaSet", "bare", "apps/v1")], "ReplicaSet/bare"),
        ({}, [owner("StatefulSet", "db", "apps/v1")], "StatefulSet/db"),
        ({"batch.kubernetes.io/job-name": "eval"}, [owner("Job", "eval", "batch/v1")], "Job/eval"),
        ({}, [owner("Job", "gang", "batch.volcano.sh/v1alpha1")], "VolcanoJob/gang"),
        ({"training.kubeflow.org/job-name": "bert"}, [owner("PyTorchJob", "bert")], "PyTorchJob/bert"),
        ({"ray.io/cluster": "tune"}, [owner("RayCluster", "tune", "ray.io/v1")], "RayCluster/tune"),
        (
            {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": "sweep"},
            [owner("RayCluster", "sweep-x2", "ray.io/v1")],
            "RayJob/sweep",
        ),
        (
            {"jobset.sigs.k8s.io/jobset-name": "pretrain"},
            [owner("Job", "pretrain-node-0", "batch/v1")],
            "JobSet/pretrain",
        ),
        ({}, [owner("PodGroup", "x", controller=None), owner("PyTorchJob", "y")], "PyTorchJob/y"),
        ({}, [owner("Node", "n1", "v1")], None),
        ({}, [], None),
    ],
)  # fmt: skip
def test_a_pod_belongs_to_what_people_started(
    labels: dict[str, str], owners: list[dict[str, Any]], workload: str | None
) -> None:
    assert workload_of({"labels": labels, "ownerReferences": owners}) == workload


def test_labels_go_before_annotations_and_the_first_name_counts() -> None:
    found = only(
        "a", labels={"owner": "ada", "team": "ml"}, annotations={"owner": "x", "user": "bob"}
    )
    assert (found.user, found.team, found.pod) == ("bob", "ml", "research/a")
    assert only("a", annotations={"owner": "x"}, labels={"owner": "ada"}).user == "ada"


def test_labels_are_kept_without_those_of_controllers_and_within_bounds() -> None:
    found = only("a", labels={"app": "llm", "pod-template-hash": "5d4"})
    assert found.labels == '{"app": "llm"}'
    assert only("a").labels is None
    many = only("a", labels={f"label-{n:03}": "ä" * 60 for n in range(200)}).labels
    assert many is not None and len(many) <= LABELS_CHARS_MAX
    assert json.loads(many)["label-000"] == "ä" * 60


def test_a_static_pod_is_known_by_the_uid_of_its_folder_too() -> None:
    found = parse_pods(
        answer_of([pod("etcd-n1", annotations={"kubernetes.io/config.hash": "0" * 32})]), NAMES
    )
    assert sorted(found) == ["0" * 32, PLAIN]


def test_a_list_of_metadata_alone_is_as_good() -> None:
    item = {"metadata": pod("a", labels={"user": "ada"})["metadata"]}
    body = json.dumps({"kind": "PartialObjectMetadataList", "items": [item]}).encode()
    assert parse_pods(body, NAMES)[PLAIN].user == "ada"


@pytest.mark.parametrize("items", [None, []])
def test_a_node_without_pods_has_no_names(items: object) -> None:
    assert parse_pods(json.dumps({"kind": "PodList", "items": items}).encode(), NAMES) == {}


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"items": 3}', b"\xff"])
def test_what_is_no_list_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # whatever the parser says
        parse_pods(body, NAMES)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["metadata", "labels", "annotations", "uid", "name", "namespace", "kind",
                         "ownerReferences", "controller", "user"]),
        inner,
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=30)
@given(items=st.lists(_JSON))
def test_pods_that_make_no_sense_are_left_out(items: list[Any]) -> None:
    body = json.dumps({"items": [*items, pod("a")]}).encode()
    assert parse_pods(body, NAMES)[PLAIN].name == "a"


def test_labels_of_a_node_that_are_not_texts_are_left_out() -> None:
    body = json.dumps({"metadata": {"name": "n1", "labels": {"rack": "r7", "bad": 3}}}).encode()
    assert parse_labels(body) == {"rack": "r7"}
    with pytest.raises(ValueError, match="no object"):
        parse_labels(b'{"kind": "Status"}')
