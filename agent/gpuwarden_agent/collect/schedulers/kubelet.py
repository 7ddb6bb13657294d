"""Asks the kubelet which container has which devices: its pod-resources socket, List of version 1.

Older kubelets, and kubelets that refuse, are named in the error.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.grpc import (
    UNIMPLEMENTED,
    GrpcError,
    call,
    string,
    strings,
    submessages,
)

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
METHOD = "/v1.PodResourcesLister/List"
TIMEOUT_S = 1.5
"""For the whole call: below the deadline of a probe's reading."""


class PodResourcesError(Exception):
    """The kubelet gave no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """Devices of one resource that a container has."""

    namespace: str
    pod: str
    container: str
    resource: str
    """As in a pod's limits: nvidia.com/gpu; of a resource claim its driver: gpu.nvidia.com."""
    ids: tuple[str, ...]
    """As the device plugin, or the driver, named them."""


def parse_list(answer: bytes) -> list[ContainerDevices]:
    """Parse a ListPodResourcesResponse. Raises ValueError for other bytes."""
    found = []
    for pod in submessages(answer, 1):
        name, namespace = string(pod, 1), string(pod, 2)
        for container in submessages(pod, 3):
            of = (namespace, name, string(container, 1))
            found += [
                ContainerDevices(*of, string(given, 1), tuple(strings(given, 2)))
                for given in submessages(container, 2)
            ]
            found += [
                ContainerDevices(*of, string(claimed, 2), (string(claimed, 4),))
                for claim in submessages(container, 5)
                for claimed in submessages(claim, 4)
            ]
    return found


def list_devices(
    path: Path, monotonic: Callable[[], float], timeout_s: float = TIMEOUT_S
) -> list[ContainerDevices]:
    """Ask the kubelet. Raises PodResourcesError."""
    until = monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            answer = call(connection, METHOD, b"", lambda: until - monotonic(), "the kubelet")
            return parse_list(answer)
    except GrpcError as error:
        if error.status == UNIMPLEMENTED:
            raise PodResourcesError(
                "the kubelet is older than 1.20: it has no List of version 1"
            ) from error
        raise PodResourcesError(str(error)) from error
    except TimeoutError as error:
        raise PodResourcesError(f"{path}: no answer within {timeout_s:g} s") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PodResourcesError(f"{path}: {reason}") from error
