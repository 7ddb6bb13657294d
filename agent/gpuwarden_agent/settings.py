"""Defines the settings of the agent, all that an operator can change."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.settings import setting


@dataclass(frozen=True, slots=True)
class PodLabelNames:
    """Labels or annotations that name a pod's user and team; the first that it has is used."""

    user: Sequence[str] = ()
    team: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Limits of time that no operator changes."""

    probe_deadline_s: float = 2.0
    """After it a probe's call counts as stuck."""
    request_timeout_s: float = 10.0
    """How long the collector has to answer."""
    backoff_max_s: float = 30.0
    """Longest pause between tries while the collector is away."""
    stop_timeout_s: float = 5.0
    """Time on stop to send what waits; the rest stays in the spool."""


TIMING = Timing()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of the agent of one node."""

    node: str | None = setting(None, "Name of this node; none: the host's name.")
    labels: dict[str, str] = setting({}, "Labels of this node, for queries: rack, cluster, owner.")
    backend: str = setting(
        "auto",
        "Where GPU readings come from; auto: NVIDIA's and AMD's drivers, whichever there are.",
        choices=("auto", "nvml", "simulator", "replay"),
    )
    collector_url: tuple[str, ...] = setting(
        ("http://127.0.0.1:8750",), "Address of the collector; of several of one lake a list."
    )
    token_file: Path | None = setting(
        None, "File of the token that the collector knows this node by; gpuwarden enroll writes it."
    )
    tls_ca: Path | None = setting(
        None, "PEM file of the only authority trusted for the collector; none: those of the system."
    )
    state_dir: Path = setting(
        Path("/var/lib/gpuwarden-agent"), "Folder of the spool; one agent a folder."
    )
    kubernetes: str = setting(
        "auto",
        "Who tells owners and labels of pods, where the agent has a service account; auto: the kubelet, else "
        "the API server.",
        choices=("auto", "kubelet", "api", "off"),
    )
    kubernetes_parents: bool = setting(
        False,
        "Whether the API server is asked what Jobs and RayClusters belong to: CronJob, RayJob.",
    )
    pod_user_labels: tuple[str, ...] = setting(
        ("user", "owner", "hub.jupyter.org/username"),
        "Labels or annotations of a pod that name its user; the first that it has.",
    )
    pod_team_labels: tuple[str, ...] = setting(
        ("team", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name"),
        "Labels or annotations of a pod that name its team; the first that it has.",
    )
    cloud_metadata: bool = setting(
        False,
        "Whether the metadata service of AWS, Google, Azure or Oracle is asked for type of instance, region and spot.",
    )
    ipmi: bool = setting(
        False,
        "Whether ipmitool asks the BMC each minute for the node's power and its power supplies; needs /dev/ipmi0.",
    )
    interval_s: float = setting(
        1.0, "Seconds between ticks, aligned to the wall clock.", least=0.1, most=60
    )
    batch_s: float = setting(5.0, "Seconds of samples in a batch.", least=0.1, most=300)
    spool_bytes_max: int = setting(
        1024**3, "Bytes of batches that wait for the collector; above it the oldest is dropped.",
        least=1024**2,
    )  # fmt: skip
    simulate_gpus: int = setting(8, "GPUs of the simulated node, H100.", least=1, most=64)
    replay_file: Path | None = setting(
        None, "Recording that backend replay plays (gpuwarden agent record makes one)."
    )
    exporter_listen: str | None = setting(
        None,
        "Address and port of the Prometheus exporter, such as 127.0.0.1:9750 or [::]:9750; none: off.",
    )
    exporter_names: tuple[str, ...] = setting(
        ("own",),
        "Name sets of the Prometheus exporter: own, dcgm (to 4.8), dcgm49 (since 4.9), jobstats.",
    )
    slurm_controller: bool = setting(
        False,
        "Whether this agent asks Slurm's controller (squeue, sinfo) for the cluster: one does.",
    )
    progress_dir: Path | None = setting(
        None, "Folder in which jobs report tokens and steps as files, mode 1777; none: off."
    )
    progress_socket: Path | None = setting(
        None, "Unix socket on which jobs report tokens and steps as StatsD's datagrams; none: off."
    )
    log_level: str = setting(
        "info", "Least level that is logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting("text", "Form of the log on stderr.", choices=("text", "json"))

    @property
    def collectors(self) -> tuple[str, ...]:
        """Addresses to ship to, each once."""
        return tuple(dict.fromkeys(self.collector_url))

    @property
    def node_name(self) -> str:
        """The name of this node in every row."""
        return self.node or socket.gethostname()

    @property
    def pod_labels(self) -> PodLabelNames:
        """Labels of a pod that name its user and team."""
        return PodLabelNames(self.pod_user_labels, self.pod_team_labels)

    @property
    def interval_ms(self) -> int:
        """The tick in milliseconds, as timestamps count."""
        return max(1, round(self.interval_s * 1000))

    @property
    def batch_ms(self) -> int:
        """The length of a batch in milliseconds: at least one tick."""
        return max(self.interval_ms, round(self.batch_s * 1000))
