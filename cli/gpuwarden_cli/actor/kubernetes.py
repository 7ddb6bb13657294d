"""Does acts by the API server of Kubernetes, with the service account of the actor's pod.

`pods`: get, delete; `pods/eviction`: create; `nodes`: get, list, patch; `replicasets`: get; `deployments/scale` and
`statefulsets/scale`: get, patch; `events`: create. https://kubernetes.io/docs/reference/kubernetes-api/
"""

import json
import logging
import os
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden.http_client import opener
from gpuwarden_cli.actor.acts import Act, ActError

log = logging.getLogger(__name__)

MARK = "gpuwarden.io/closed-by"
"""Annotation of a node that the actor closed: the act's id. Only such a node is opened again."""
TAINT = {"key": "gpuwarden.io/sick", "effect": "NoSchedule"}
_CLOSING = frozenset({"cordon_node", "taint_node"})
_SCALED = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 15.0
_BODY_BYTES_MAX = 32 * 1024 * 1024
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Kubernetes:
    """The API server that the pod knows."""

    kinds = frozenset(
        {"delete_pod", "evict_pod", "scale_to_zero", "cordon_node", "taint_node", "resume_node"}
    )

    def __init__(self, clock: Clock, account: Path = ACCOUNT, url: str | None = None) -> None:
        """`url`: of the API server; None: by the environment of a pod."""
        self._clock = clock
        self._account = account
        self._url = url

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`."""
        if act.kind in _CLOSING:
            return self._look_at_open(act)
        if act.kind == "resume_node":
            node = self._node(act)
            if not _is_closed(node):
                return "the node takes pods"
            if MARK not in (node["metadata"].get("annotations") or {}):
                raise ActError(f"{act.node} was closed by somebody else: not done")
            return None
        pod = self._pod(act)
        if pod is None:
            return "the pod had ended"
        if act.kind == "scale_to_zero":
            path = self._scale_path(act, pod)
            return None if self._call("GET", path)["spec"].get("replicas") else "it was at zero"
        return None

    def _look_at_open(self, act: Act) -> str | None:
        nodes = {one["metadata"]["name"]: one for one in self._call("GET", "/api/v1/nodes").get("items", [])}  # fmt: skip
        if act.node not in nodes:
            raise ActError(f"Kubernetes has no node {act.node}: not done")
        if _is_done_to(act, nodes[act.node]):
            return f"the node was {'tainted' if act.kind == 'taint_node' else 'cordoned'} already"
        if all(_is_closed(one) for name, one in nodes.items() if name != act.node):
            raise ActError(f"{act.node} is the last node that takes pods: not done")
        return None

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        if act.kind in _CLOSING or act.kind == "resume_node":
            self._call("PATCH", f"/api/v1/nodes/{_checked(act.node)}", self._node_patch(act))
            return
        pod = self._pod(act)
        if pod is None:
            return
        self._note(act, pod)
        # Of this very pod: one of the same name that came since stays.
        options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        if act.kind == "scale_to_zero":
            self._call("PATCH", self._scale_path(act, pod), {"spec": {"replicas": 0}})
        elif act.kind == "evict_pod":
            name = {name: pod["metadata"].get(name) for name in ("name", "namespace")}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": name, "deleteOptions": options}  # fmt: skip
            self._call("POST", f"{_pod_path(act)}/eviction", body)
        else:
            self._call("DELETE", _pod_path(act), options)

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`."""
        if act.kind in _CLOSING:
            return _is_done_to(act, self._node(act))
        if act.kind == "resume_node":
            return not _is_closed(self._node(act))
        pod = self._pod(act)
        return pod is None or "deletionTimestamp" in pod["metadata"]

    def _node(self, act: Act) -> dict[str, Any]:
        return self._call("GET", f"/api/v1/nodes/{_checked(act.node)}")

    def _node_patch(self, act: Act) -> dict[str, Any]:
        """What closes or opens a node. Taints are replaced as a whole: with the version that was read, so that a change
        of somebody else in between is refused."""
        node = self._node(act)
        others = [one for one in node["spec"].get("taints") or [] if one.get("key") != TAINT["key"]]
        metadata = {"resourceVersion": node["metadata"].get("resourceVersion")}
        if act.kind == "resume_node":
            spec: dict[str, Any] = {"unschedulable": None, "taints": others or None}
            return {"metadata": metadata | {"annotations": {MARK: None}}, "spec": spec}
        spec = {"taints": [*others, TAINT]} if act.kind == "taint_node" else {"unschedulable": True}
        return {"metadata": metadata | {"annotations": {MARK: act.id}}, "spec": spec}

    def _scale_path(self, act: Act, pod: dict[str, Any]) -> str:
        """Path of the scale of the pod's workload. Raises ActError."""
        namespace = _checked(act.job.partition("/")[0])
        owner = _owner(pod)
        if owner is not None and owner["kind"] == "ReplicaSet":
            path = f"/apis/apps/v1/namespaces/{namespace}/replicasets/{_checked(owner['name'])}"
            owner = _owner(self._call("GET", path))
        if owner is None or owner["kind"] not in _SCALED:
            raise ActError(f"pod {act.job} is of no Deployment or StatefulSet: not done")
        return f"/apis/apps/v1/namespaces/{namespace}/{_SCALED[owner['kind']]}/{_checked(owner['name'])}/scale"

    def _note(self, act: Act, pod: dict[str, Any]) -> None:
        """Write an event at the pod, for `kubectl describe`; the act does not depend on it."""
        namespace, _, name = act.job.partition("/")
        now = f"{self._clock.now():%Y-%m-%dT%H:%M:%SZ}"
        event = {
            "metadata": {"name": f"{name}.gpuwarden-{act.id}"[:253], "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
            "reason": "GpuwardenPolicy", "type": "Warning", "source": {"component": "gpuwarden"}, "count": 1,
            "message": f"{act.kind} by policy {act.policy}: {act.summary}"[:1024], "firstTimestamp": now, "lastTimestamp": now,
        }  # fmt: skip
        try:
            self._call("POST", f"/api/v1/namespaces/{_checked(namespace)}/events", event)
        except ActError as error:
            log.warning("no event at the pod", extra={"pod": act.job, "reason": str(error)})

    def _pod(self, act: Act) -> dict[str, Any] | None:
        try:
            return self._call("GET", _pod_path(act))
        except _NotFoundError:
            return None

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            token = (self._account / "token").read_text().strip()
            tls = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            request = urllib.request.Request(
                self._server() + path,
                None if body is None else json.dumps(body).encode(),
                {"Authorization": f"Bearer {token}", "Content-Type": kind},
                method=method,
            )
            with opener(tls).open(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(_BODY_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(2_000).decode("utf-8", "replace")
            if error.code == 404:
                raise _NotFoundError(f"{path} is not there") from error
            raise ActError(
                f"the API server answered {error.code} to {method} {path}: {' '.join(said.split())[:200]}"
            ) from error
        except (OSError, ValueError) as error:
            raise ActError(f"the API server does not answer: {error}") from error
        if not isinstance(found, dict):
            raise ActError(f"the API server answered {path} without an object")
        return found

    def _server(self) -> str:
        if self._url is not None:
            return self._url
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
        if not host or not port:
            raise ActError("this is not a pod of Kubernetes: KUBERNETES_SERVICE_HOST is not set")
        return f"https://{f'[{host}]' if ':' in host else host}:{port}"


class _NotFoundError(ActError):
    """There is no such object."""


def _is_closed(node: dict[str, Any]) -> bool:
    """Whether a node takes no new pods, or only those that tolerate a sick node."""
    return _is_cordoned(node) or _is_tainted(node)


def _is_cordoned(node: dict[str, Any]) -> bool:
    return bool(node["spec"].get("unschedulable"))


def _is_tainted(node: dict[str, Any]) -> bool:
    return any(one.get("key") == TAINT["key"] for one in node["spec"].get("taints") or [])


def _is_done_to(act: Act, node: dict[str, Any]) -> bool:
    return _is_cordoned(node) if act.kind == "cordon_node" else _is_tainted(node)


def _owner(found: dict[str, Any]) -> dict[str, Any] | None:
    """What controls an object."""
    owners = found["metadata"].get("ownerReferences") or []
    return next((one for one in owners if one.get("controller")), None)


def _pod_path(act: Act) -> str:
    namespace, _, name = act.job.partition("/")
    return f"/api/v1/namespaces/{_checked(namespace)}/pods/{_checked(name)}"


def _checked(name: str) -> str:
    """A name that can be in a path. Raises ActError."""
    if _NAME.fullmatch(name) is None:
        raise ActError(f"{name[:50]!r} is not a name that Kubernetes has: not done")
    return name
