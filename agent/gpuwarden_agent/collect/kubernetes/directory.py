"""Keeps names of this node's pods and labels of the node, asked for on a thread of its own.

No probe waits for Kubernetes: it takes what is known, and says which pods it misses. The kubelet is asked
first, which costs the cluster nothing; the API server where the kubelet refuses. A pod that has ended
stays known for a while, because its last rows are still to come. What cannot be learned costs names,
never rows, and is logged once until it changes.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from urllib.parse import quote

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.kubernetes.client import (
    API_PORT,
    KUBELET_PORT,
    KubernetesClient,
    KubernetesError,
    Server,
    ServiceAccount,
)
from gpuwarden_agent.collect.kubernetes.pods import (
    PodLabelNames,
    PodNames,
    PodSource,
    parse_labels,
    parse_parent,
    parse_pods,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

METADATA_ONLY = "application/json;as={};g=meta.k8s.io;v=v1"
"""The API server then leaves out what pods run and with which environment."""
PARENTS = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "RayCluster": "/apis/ray.io/v1/namespaces/{}/rayclusters",
}
"""Kinds that are mostly made by another: a CronJob, a RayJob."""
NEW_POD_EVERY_S = 10.0
"""How often a pod that is not known yet may make us ask."""
AGAIN_AFTER_S = 300.0
"""Labels change while a pod runs, though rarely."""
AFTER_FAILURE_S = 60.0
KEPT_S = 600.0
"""How long a pod that has ended stays known."""
GONE = 410
"""HTTP status: the resource version is too old."""


@dataclass(slots=True)
class Asked:
    """When Kubernetes was asked, and what came of it. Times are monotonic seconds."""

    at_s: float | None = None
    is_failing: bool = False
    missing: frozenset[str] = frozenset()
    """Pods that it did not know either."""


def is_due(asked: Asked, missing: Collection[str], now_s: float) -> bool:
    """Whether to ask now. `missing`: pods that probes see and nobody knows."""
    if asked.at_s is None:
        return True
    passed_s = now_s - asked.at_s
    if asked.is_failing:
        return passed_s >= AFTER_FAILURE_S
    if passed_s >= AGAIN_AFTER_S:
        return True
    return passed_s >= NEW_POD_EVERY_S and not asked.missing.issuperset(missing)


class PodDirectory:
    """What is known of the pods of this node."""

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
        """`kubelet`, `api`: None where it is not to be asked. `parents`: ask what Jobs belong to."""
        self._asks_parents = parents and api is not None
        self._parents: dict[tuple[str, str], str] = {}
        self.failed: Counter[str] = Counter()
        """What could not be learned, by reason."""
        self._clock, self._names, self._node = clock, names, node
        self._kubelet, self._api = kubelet, api
        self._asked = Asked()
        self._by_uid: Mapping[str, PodNames] = {}
        self._by_pod: Mapping[str, PodNames] = {}
        self._seen_s: dict[str, float] = {}
        self._labels: Mapping[str, str] | None = None
        self._wanted: dict[str, None] = {}
        self._said: dict[str, str] = {}
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
        """Ask on another thread, if it is time to; one such thread runs at a time."""
        if self._is_due() and self._is_asking.acquire(blocking=False):
            threading.Thread(target=self._refresh_locked, name="kubernetes", daemon=True).start()

    def refresh(self) -> None:
        """Ask now, if it is time to. Blocks for some seconds where nobody answers."""
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
        """What whoever answers first says; None: nobody does."""
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
            self._say("pods", None)
            return found
        self._say("pods", "; ".join(errors))
        return None

    def _pods_of_api(self) -> bytes:
        assert self._api is not None
        selected = f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={self._node}', safe='')}"
        accept = METADATA_ONLY.format("PartialObjectMetadataList")
        try:
            # Of any age: the API server need not ask its database.
            return self._api.get(f"{selected}&resourceVersion=0", accept)
        except KubernetesError as error:
            if error.status != GONE:
                raise
        return self._api.get(selected, accept)

    def _with_parents(self, pods: Mapping[str, PodNames]) -> Mapping[str, PodNames]:
        """The pods with what their Jobs and RayClusters belong to, each asked for once."""
        wanted = {(p.namespace, p.workload) for p in pods.values() if p.workload is not None}
        self._parents = {key: self._parents[key] for key in wanted & self._parents.keys()}
        for namespace, workload in sorted(wanted - self._parents.keys()):
            kind, _, name = workload.partition("/")
            if kind not in PARENTS:
                continue
            path = f"{PARENTS[kind].format(quote(namespace, safe=''))}/{quote(name, safe='')}"
            parent = self._told("owners", partial(self._parent, path, workload))
            if parent is None:
                break  # who refuses one refuses all
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
            self._say(what, _sentence(error))
            return None
        self._say(what, None)
        return found

    def _take(self, pods: Mapping[str, PodNames]) -> None:
        """Replaces what is known as a whole, so that readers need no lock."""
        now_s = self._clock.monotonic()
        self._seen_s |= dict.fromkeys(pods, now_s)
        self._seen_s = {uid: at_s for uid, at_s in self._seen_s.items() if now_s - at_s <= KEPT_S}
        kept = {uid: pod for uid, pod in self._by_uid.items() if uid in self._seen_s}
        # Of a name that was used again the newest pod counts.
        self._by_pod = {pod.pod: pod for pod in (*kept.values(), *pods.values())}
        self._by_uid = {**kept, **pods}

    def _say(self, what: str, why: str | None) -> None:
        """Log what changed. `why`: what went wrong; None: nothing."""
        if why is not None:
            self.failed[why] += 1
        if self._said.get(what) == why:
            return
        if why is None:
            del self._said[what]
            log.info("Kubernetes answers again", extra={"about": what})
        else:
            self._said[what] = why
            log.warning("names from Kubernetes are unknown", extra={"about": what, "why": why})


def _sentence(error: Exception) -> str:
    """What went wrong, and what to do where that is known."""
    if not isinstance(error, KubernetesError):
        return f"no answer that can be understood: {error}"
    if error.status == 401:
        return f"{error}: the service account's token is refused"
    if error.status == 403:
        return f"{error}: grant the service account nodes/pods (kubelet) or pods and nodes (API)"
    if error.is_tls:
        return f"{error}: set kubelet_verify to false, or kubernetes to api"
    return str(error)


def pod_directory(
    source: PodSource, clock: Clock, environ: Mapping[str, str] | None = None
) -> PodDirectory | None:
    """The directory that the settings ask for; None: off, or this process has no service account.

    `environ`: that of the process, which names the API server in a pod. Raises ValueError where an address is none.
    """
    environ = os.environ if environ is None else environ
    account = ServiceAccount(source.service_account)
    if source.ask == "off" or not account.is_there:
        return None
    kubelet = api = None
    if source.ask in ("auto", "kubelet"):
        where = _server("kubelet", source.kubelet or source.node, KUBELET_PORT)
        kubelet = KubernetesClient(where, account, clock.monotonic, verify=source.kubelet_verify)
    if source.ask in ("auto", "api") and (address := source.api or _api_of(environ)):
        server = _server("kubernetes_api", address, API_PORT)
        api = KubernetesClient(server, account, clock.monotonic)
    if kubelet is None and api is None:
        raise ValueError("kubernetes_api: set it: the environment names no API server")
    return PodDirectory(
        clock, source.names, source.node, kubelet=kubelet, api=api, parents=source.parents
    )


def _server(setting: str, text: str, default_port: int) -> Server:
    try:
        return Server.parse(text, default_port)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from error


def _api_of(environ: Mapping[str, str]) -> str | None:
    host, port = (
        environ.get("KUBERNETES_SERVICE_HOST"),
        environ.get("KUBERNETES_SERVICE_PORT_HTTPS"),
    )
    if not host:
        return None
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port or environ.get('KUBERNETES_SERVICE_PORT') or API_PORT}"
