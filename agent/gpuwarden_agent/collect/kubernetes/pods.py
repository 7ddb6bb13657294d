"""Parses pods and labels of a node, in the format of kubelet and API server, and finds a pod's workload.

Pure functions. A pod that cannot be parsed is skipped; an answer that is not a list of objects is a
ValueError.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden_agent.settings import PodLabelNames

LABELS_CHARS_MAX = 4096
"""Limit for the JSON of a pod's labels; the alphabetically last labels are dropped."""

_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})")
_INTERNAL_LABELS = frozenset(
    {"pod-template-hash", "controller-revision-hash", "pod-template-generation", "controller-uid",
     "batch.kubernetes.io/controller-uid"}
)  # fmt: skip
"""Labels that controllers write for themselves."""

_NAMED_BY_LABEL = (
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("serving.kserve.io/inferenceservice", "InferenceService"),
    ("workflows.argoproj.io/workflow", "Workflow"),
    ("sparkoperator.k8s.io/app-name", "SparkApplication"),
)
"""Labels with the name of a controller that makes other controllers. It comes before those, because a
person started it."""
_TEMPLATE_HASHES = (("pod-template-hash", "Deployment"), ("rollouts-pod-template-hash", "Rollout"))
_RAY_KIND, _RAY_NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"
_VOLCANO = "batch.volcano.sh/"


@dataclass(frozen=True, slots=True)
class PodNames:
    """Names of a pod for rows; None: unknown."""

    namespace: str
    name: str
    workload: str | None
    """Kind/name of its workload: PyTorchJob/bert."""
    user: str | None
    team: str | None
    labels: str | None
    """JSON object."""

    @property
    def pod(self) -> str:
        """As other tables name it."""
        return f"{self.namespace}/{self.name}"


def uid_of_cgroup(cgroup: str) -> str | None:
    """The uid of the pod in /proc/PID/cgroup, for all runtimes and cgroup drivers; None: no pod."""
    found = _UID.findall(cgroup)
    return _plain(found[-1]) if found else None


def parse_pods(answer: bytes, names: PodLabelNames) -> dict[str, PodNames]:
    """Pods of a PodList or of a list of their metadata, by uid. Raises ValueError when it is neither."""
    found = json.loads(answer)
    items = found.get("items") if isinstance(found, dict) else None
    # Go writes an empty list as null.
    if not isinstance(found, dict) or "items" not in found or not isinstance(items, list | None):
        raise ValueError("no list of pods")
    pods: dict[str, PodNames] = {}
    for item in items or ():
        metadata = item.get("metadata") if isinstance(item, dict) else None
        if not isinstance(metadata, dict) or (pod := _pod(metadata, names)) is None:
            continue
        pods[_plain(_text(metadata, "uid"))] = pod
        # The kubelet names the folder of a static pod after its file, not after its mirror.
        if of_file := _texts(metadata, "annotations").get("kubernetes.io/config.hash"):
            pods[_plain(of_file)] = pod
    return pods


def parse_labels(answer: bytes) -> dict[str, str]:
    """Labels of an object. Raises ValueError when the answer is not an object."""
    return _texts(_metadata(answer), "labels")


def workload_of(metadata: Mapping[str, Any]) -> str | None:
    """Kind/name of a pod's workload; None: the pod was made by hand, or by the kubelet."""
    labels = _texts(metadata, "labels")
    if labels.get(_RAY_KIND) and labels.get(_RAY_NAME):
        return f"{labels[_RAY_KIND]}/{labels[_RAY_NAME]}"
    for label, kind in _NAMED_BY_LABEL:
        if labels.get(label):
            return f"{kind}/{labels[label]}"
    owner = _owner(metadata)
    kind, name = _text(owner, "kind"), _text(owner, "name")
    if not kind or not name or kind == "Node":
        return None
    if kind == "ReplicaSet":
        for label, of in _TEMPLATE_HASHES:
            if labels.get(label) and name.endswith(f"-{labels[label]}"):
                return f"{of}/{name.removesuffix(f'-{labels[label]}')}"
    if kind == "Job" and _text(owner, "apiVersion").startswith(_VOLCANO):
        kind = "VolcanoJob"
    return f"{kind}/{name}"


def parse_parent(answer: bytes) -> str | None:
    """Kind/name of the owner of an object; None: it has none. Raises ValueError when the answer is not
    an object.
    """
    owner = _owner(_metadata(answer))
    kind, name = _text(owner, "kind"), _text(owner, "name")
    return f"{kind}/{name}" if kind and name else None


def _metadata(answer: bytes) -> Mapping[str, Any]:
    found = json.loads(answer)
    metadata = found.get("metadata") if isinstance(found, dict) else None
    if isinstance(metadata, dict):
        return metadata
    raise ValueError("no object")


def _owner(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The controller, else the first owner; empty: none."""
    owners = metadata.get("ownerReferences")
    refs = [ref for ref in owners if isinstance(ref, dict)] if isinstance(owners, list) else []
    return next((ref for ref in refs if ref.get("controller") is True), refs[0] if refs else {})


def _pod(metadata: Mapping[str, Any], names: PodLabelNames) -> PodNames | None:
    namespace, name = _text(metadata, "namespace"), _text(metadata, "name")
    if not namespace or not name or not _text(metadata, "uid"):
        return None
    labels = _texts(metadata, "labels")
    said = _texts(metadata, "annotations") | labels
    return PodNames(
        namespace,
        name,
        workload_of(metadata),
        next((said[key] for key in names.user if said.get(key)), None),
        next((said[key] for key in names.team if said.get(key)), None),
        _json(labels),
    )


def _json(labels: Mapping[str, str]) -> str | None:
    kept: dict[str, str] = {}
    room = LABELS_CHARS_MAX - 2
    for key in sorted(labels.keys() - _INTERNAL_LABELS):
        room -= len(json.dumps({key: labels[key]}, ensure_ascii=False))
        if room < 0:
            break
        kept[key] = labels[key]
    return json.dumps(kept, ensure_ascii=False) if kept else None


def _plain(uid: str) -> str:
    """A uid without separators: systemd's folders have _ instead of -."""
    return uid.replace("-", "").replace("_", "")


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _texts(values: Mapping[str, Any], key: str) -> dict[str, str]:
    found = values.get(key)
    items = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in items if isinstance(value, str)}
