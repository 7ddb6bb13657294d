"""Caches names of this node's pods and labels of the node, which it reads on a thread of its own.

Probes do not wait for Kubernetes: they use the cache, which notes the missing pods. The kubelet is asked
first, which costs the cluster nothing; the API server if the kubelet refuses. A pod that has ended stays
in the cache for a while, for its last rows. If Kubernetes does not answer, rows lack the names; the
reason is logged once until it changes.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.kubernetes import SERVICE_ACCOUNT
from gpuwarden_agent.collect.kubernetes.client import (
    API_PORT,
    KUBELET_PORT,
    KubernetesClient,
    KubernetesError,
    Server,
    ServiceAccount,
)
from gpuwarden_agent.collect.kubernetes.pods import PodNames, parse_labels, parse_parent, parse_pods
from gpuwarden_agent.settings import AgentSettings, PodLabelNames

log = logging.getLogger(__name__)
T = TypeVar("T")

METADATA_ONLY = "application/json;as={};g=meta.k8s.io;v=v1"
"""The API server then returns metadata only, without containers and environment."""
PARENTS = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "RayCluster": "/apis/ray.io/v1/namespaces/{}/rayclusters",
}
"""Kinds that usually have an owner: a CronJob, a RayJob."""
NEW_POD_EVERY_S = 10.0
"""Shortest time between two requests for unknown pods."""
AGAIN_AFTER_S = 300.0
"""Refresh interval, because labels of a running pod may change."""
AFTER_FAILURE_S = 60.0
KEPT_S = 600.0
"""How long a pod that has ended stays in the cache."""
GONE = 410
"""HTTP status: the resource version is too old."""


@dataclass(slots=True)
class Asked:
    """The last request to Kubernetes and its result. Times are monotonic seconds."""

    at_s: float | None = None
    is_failing: bool = False
    missing: frozenset[str] = frozenset()
    """Pods that Kubernetes did not know."""


def is_due(asked: Asked, missing: Collection[str], now_s: float) -> bool:
    """Whether to ask now. `missing`: pods that probes see and the cache lacks."""
    if asked.at_s is None:
        return True
    passed_s = now_s - asked.at_s
    if asked.is_failing:
        return passed_s >= AFTER_FAILURE_S
    if passed_s >= AGAIN_AFTER_S:
        return True
    return passed_s >= NEW_POD_EVERY_S and not asked.missing.issuperset(missing)


class PodDirectory:
    """The cache of this node's pods."""

    def __init__(
        self,
        clock: Clock,
        names: PodLabelNames,
        node: str,
        *,
        kubelet: KubernetesClient | None = None,
        api: KubernetesClient | None = None,
        parents: bool = False,
    ) -> None:
        """`kubelet`, `api`: None: do not ask it. `parents`: ask for the owners of Jobs."""
        self._asks_parents = parents and api is not None
        self._parents: dict[tuple[str, str], str] = {}
        self.failed: Counter[str] = Counter()
        """Failed requests, by reason."""
        self._clock, self._names, self._node = clock, names, node
        self._kubelet, self._api = kubelet, api
        self._asked = Asked()
        self._by_uid: Mapping[str, PodNames] = {}
        self._by_pod: Mapping[str, PodNames] = {}
        self._seen_s: dict[str, float] = {}
        self._labels: Mapping[str, str] | None = None
        self._wanted: dict[str, None] = {}
        self._logged: dict[str, str] = {}
        self._is_asking = threading.Lock()

    def by_uid(self, uid: str | None) -> PodNames | None:
        """A pod by the uid of its control group; None: not known (yet)."""
        if uid is None:
            return None
        if (found := self._by_uid.get(uid)) is None:
            self._wanted[uid] = None
        return found

    def by_pod(self, pod: str | None) -> PodNames | None:
        """A pod by namespace/name; None: not known (yet)."""
        if pod is None:
            return None
        if (found := self._by_pod.get(pod)) is None:
            self._wanted[pod] = None
        return found

    @property
    def node_labels(self) -> Mapping[str, str] | None:
        """Labels of the node; None: not known."""
        return self._labels

    def refresh_soon(self) -> None:
        """Refresh on another thread if it is time; one such thread runs at a time."""
        if self._is_due() and self._is_asking.acquire(blocking=False):
            threading.Thread(target=self._refresh_locked, name="kubernetes", daemon=True).start()

    def refresh(self) -> None:
        """Refresh now if it is time. Blocks for some seconds if no server answers."""
        if self._is_due():
            self._is_asking.acquire()
            self._refresh_locked()

    def _is_due(self) -> bool:
        return is_due(self._asked, list(self._wanted), self._clock.monotonic())

    def _refresh_locked(self) -> None:
        try:
            wanted = list(self._wanted)
            pods = self._pods()
            if pods is not None:
                self._take(self._with_parents(pods) if self._asks_parents else pods)
            labels = self._told("node", self._node_labels)
            self._labels = self._labels if labels is None else labels
            known = {*self._by_uid, *self._by_pod}
            self._asked = Asked(
                self._clock.monotonic(), pods is None, frozenset(wanted).difference(known)
            )
            for one in wanted:
                self._wanted.pop(one, None)
        finally:
            self._is_asking.release()

    def _pods(self) -> Mapping[str, PodNames] | None:
        """Pods of the first source that answers; None: none answers."""
        sources: list[Callable[[], bytes]] = []
        if (kubelet := self._kubelet) is not None:
            sources.append(lambda: kubelet.get("/pods"))
        if self._api is not None:
            sources.append(self._pods_of_api)
        errors = []
        for source in sources:
            try:
                found = parse_pods(source(), self._names)
            except (KubernetesError, ValueError, RecursionError) as error:
                errors.append(_sentence(error))
                continue
            self._log_state("pods", None)
            return found
        self._log_state("pods", "; ".join(errors))
        return None

    def _pods_of_api(self) -> bytes:
        assert self._api is not None
        selected = f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={self._node}', safe='')}"
        accept = METADATA_ONLY.format("PartialObjectMetadataList")
        try:
            # Any version will do: the API server then answers from its cache.
            return self._api.get(f"{selected}&resourceVersion=0", accept)
        except KubernetesError as error:
            if error.status != GONE:
                raise
        return self._api.get(selected, accept)

    def _with_parents(self, pods: Mapping[str, PodNames]) -> Mapping[str, PodNames]:
        """The pods with the owners of their Jobs and RayClusters, each asked for once."""
        wanted = {(p.namespace, p.workload) for p in pods.values() if p.workload is not None}
        self._parents = {key: self._parents[key] for key in wanted & self._parents.keys()}
        for namespace, workload in sorted(wanted - self._parents.keys()):
            kind, _, name = workload.partition("/")
            if kind not in PARENTS:
                continue
            path = f"{PARENTS[kind].format(quote(namespace, safe=''))}/{quote(name, safe='')}"
            parent = self._told("owners", partial(self._parent, path, workload))
            if parent is None:
                break  # the other requests would fail, too
            self._parents[namespace, workload] = parent
        return {
            uid: replace(
                pod, workload=self._parents.get((pod.namespace, pod.workload or ""), pod.workload)
            )
            for uid, pod in pods.items()
        }

    def _parent(self, path: str, workload: str) -> str:
        assert self._api is not None
        answer = self._api.get(path, METADATA_ONLY.format("PartialObjectMetadata"))
        return parse_parent(answer) or workload

    def _node_labels(self) -> Mapping[str, str] | None:
        if self._api is None:
            return None
        path = f"/api/v1/nodes/{quote(self._node, safe='')}"
        return parse_labels(self._api.get(path, METADATA_ONLY.format("PartialObjectMetadata")))

    def _told(self, what: str, ask: Callable[[], T]) -> T | None:
        try:
            found = ask()
        except (KubernetesError, ValueError, RecursionError) as error:
            self._log_state(what, _sentence(error))
            return None
        self._log_state(what, None)
        return found

    def _take(self, pods: Mapping[str, PodNames]) -> None:
        """Replace the cache as a whole, so that readers need no lock."""
        now_s = self._clock.monotonic()
        self._seen_s |= dict.fromkeys(pods, now_s)
        self._seen_s = {uid: at_s for uid, at_s in self._seen_s.items() if now_s - at_s <= KEPT_S}
        kept = {uid: pod for uid, pod in self._by_uid.items() if uid in self._seen_s}
        # If a name was used again, the newest pod counts.
        self._by_pod = {pod.pod: pod for pod in (*kept.values(), *pods.values())}
        self._by_uid = {**kept, **pods}

    def _log_state(self, what: str, why: str | None) -> None:
        """Log a change of state. `why`: the error; None: no error."""
        if why is not None:
            self.failed[why] += 1
        if self._logged.get(what) == why:
            return
        if why is None:
            del self._logged[what]
            log.info("Kubernetes answers again", extra={"about": what})
        else:
            self._logged[what] = why
            log.warning("names from Kubernetes are unknown", extra={"about": what, "why": why})


def _sentence(error: Exception) -> str:
    """The error, and a remedy if there is one."""
    if not isinstance(error, KubernetesError):
        return f"no answer that can be understood: {error}"
    if error.status == 401:
        return f"{error}: the service account's token is refused"
    if error.status == 403:
        return f"{error}: grant the service account nodes/pods (kubelet) or pods and nodes (API)"
    if error.is_tls:
        return f"{error}: set kubernetes to api"
    return str(error)


def pod_directory(
    settings: AgentSettings,
    clock: Clock,
    environ: Mapping[str, str] | None = None,
    *,
    account_dir: Path = SERVICE_ACCOUNT,
    kubelet: str | None = None,
) -> PodDirectory | None:
    """The directory that the settings ask for; None: off, or this process has no service account.

    `environ`: that of the process, which names the API server in a pod, and its host as HOST_IP. `kubelet`: its address
    (default: port 10250 of the host). Raises ValueError for a wrong address.
    """
    environ = os.environ if environ is None else environ
    account = ServiceAccount(account_dir)
    if settings.kubernetes == "off" or not account.is_there:
        return None
    of_kubelet = of_api = None
    if settings.kubernetes in ("auto", "kubelet"):
        host = kubelet or environ.get("HOST_IP") or settings.node_name
        server = _server("node", host, KUBELET_PORT)
        of_kubelet = KubernetesClient(server, account, clock.monotonic)
    if settings.kubernetes in ("auto", "api") and (address := _api_of(environ)):
        server = _server("KUBERNETES_SERVICE_HOST", address, API_PORT)
        of_api = KubernetesClient(server, account, clock.monotonic)
    if of_kubelet is None and of_api is None:
        raise ValueError('kubernetes = "api": the environment has no KUBERNETES_SERVICE_HOST')
    return PodDirectory(
        clock,
        settings.pod_labels,
        settings.node_name,
        kubelet=of_kubelet,
        api=of_api,
        parents=settings.kubernetes_parents,
    )


def _server(name: str, text: str, default_port: int) -> Server:
    try:
        return Server.parse(text, default_port)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _api_of(environ: Mapping[str, str]) -> str | None:
    host, port = (
        environ.get("KUBERNETES_SERVICE_HOST"),
        environ.get("KUBERNETES_SERVICE_PORT_HTTPS"),
    )
    if not host:
        return None
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port or environ.get('KUBERNETES_SERVICE_PORT') or API_PORT}"
