"""Does acts by the API server of Kubernetes, with the service account of the actor's pod.

DELETE of a pod (`pods`: get, delete), PATCH of a node's `spec.unschedulable` (`nodes`: get, list, patch).
https://kubernetes.io/docs/reference/kubernetes-api/
"""

import json
import os
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gpuwarden_cli.actor.acts import Act, ActError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 15.0
_BODY_BYTES_MAX = 32 * 1024 * 1024
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Kubernetes:
    """The API server that the pod knows."""

    kinds = frozenset({"delete_pod", "cordon_node"})

    def __init__(self, account: Path = ACCOUNT, url: str | None = None) -> None:
        """`url`: of the API server; None: by the environment of a pod."""
        self._account = account
        self._url = url

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`."""
        if act.kind == "cordon_node":
            nodes = self._call("GET", "/api/v1/nodes").get("items", [])
            found = {
                one["metadata"]["name"]: bool(one["spec"].get("unschedulable")) for one in nodes
            }
            if act.node not in found:
                raise ActError(f"Kubernetes has no node {act.node}: not done")
            if found[act.node]:
                return "the node was cordoned already"
            if all(is_closed for name, is_closed in found.items() if name != act.node):
                raise ActError(f"{act.node} is the last node that takes pods: not done")
            return None
        return None if self._pod(act) is not None else "the pod had ended"

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        if act.kind == "cordon_node":
            patch = {"spec": {"unschedulable": True}}
            self._call("PATCH", f"/api/v1/nodes/{_checked(act.node)}", patch)
            return
        pod = self._pod(act)
        if pod is None:
            return
        # Of this very pod: one of the same name that came since stays.
        options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        self._call("DELETE", _pod_path(act), options)

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`."""
        if act.kind == "cordon_node":
            found = self._call("GET", f"/api/v1/nodes/{_checked(act.node)}")
            return bool(found["spec"].get("unschedulable"))
        pod = self._pod(act)
        return pod is None or "deletionTimestamp" in pod["metadata"]

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
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=tls) as answer:
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


def _pod_path(act: Act) -> str:
    namespace, _, name = act.job.partition("/")
    return f"/api/v1/namespaces/{_checked(namespace)}/pods/{_checked(name)}"


def _checked(name: str) -> str:
    """A name that can be in a path. Raises ActError."""
    if _NAME.fullmatch(name) is None:
        raise ActError(f"{name[:50]!r} is not a name that Kubernetes has: not done")
    return name
