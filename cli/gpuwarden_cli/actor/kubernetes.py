"""Does acts by the API server of Kubernetes, with the service account of the actor's pod.

`pods`: get, delete; `nodes`: get, list, patch; `events`: create. https://kubernetes.io/docs/reference/kubernetes-api/
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
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 15.0
_BODY_BYTES_MAX = 32 * 1024 * 1024
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Kubernetes:
    """The API server that the pod knows."""

    kinds = frozenset({"delete_pod", "cordon_node", "resume_node"})

    def __init__(self, clock: Clock, account: Path = ACCOUNT, url: str | None = None) -> None:
        """`url`: of the API server; None: by the environment of a pod."""
        self._clock = clock
        self._account = account
        self._url = url

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`."""
        if act.kind == "cordon_node":
            return self._look_at_open(act)
        if act.kind == "resume_node":
            node = self._node(act)
            if not _is_closed(node):
                return "the node takes pods"
            if MARK not in (node["metadata"].get("annotations") or {}):
                raise ActError(f"{act.node} was closed by somebody else: not done")
            return None
        return "the pod had ended" if self._pod(act) is None else None

    def _look_at_open(self, act: Act) -> str | None:
        nodes = {one["metadata"]["name"]: one for one in self._call("GET", "/api/v1/nodes").get("items", [])}  # fmt: skip
        if act.node not in nodes:
            raise ActError(f"Kubernetes has no node {act.node}: not done")
        if _is_closed(nodes[act.node]):
            return "the node was cordoned already"
        if all(_is_closed(one) for name, one in nodes.items() if name != act.node):
            raise ActError(f"{act.node} is the last node that takes pods: not done")
        return None

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        if act.kind in ("cordon_node", "resume_node"):
            is_cordon = act.kind == "cordon_node"
            patch = {
                "metadata": {"annotations": {MARK: act.id if is_cordon else None}},
                "spec": {"unschedulable": True if is_cordon else None},
            }
            self._call("PATCH", f"/api/v1/nodes/{_checked(act.node)}", patch)
            return
        pod = self._pod(act)
        if pod is None:
            return
        self._note(act, pod)
        # Of this very pod: one of the same name that came since stays.
        self._call("DELETE", _pod_path(act), {"preconditions": {"uid": pod["metadata"]["uid"]}})

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`."""
        if act.kind in ("cordon_node", "resume_node"):
            return _is_closed(self._node(act)) is (act.kind == "cordon_node")
        pod = self._pod(act)
        return pod is None or "deletionTimestamp" in pod["metadata"]

    def _node(self, act: Act) -> dict[str, Any]:
        return self._call("GET", f"/api/v1/nodes/{_checked(act.node)}")

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
    """Whether a node takes no new pods."""
    return bool(node["spec"].get("unschedulable"))


def _pod_path(act: Act) -> str:
    namespace, _, name = act.job.partition("/")
    return f"/api/v1/namespaces/{_checked(namespace)}/pods/{_checked(name)}"


def _checked(name: str) -> str:
    """A name that can be in a path. Raises ActError."""
    if _NAME.fullmatch(name) is None:
        raise ActError(f"{name[:50]!r} is not a name that Kubernetes has: not done")
    return name
