"""Finds the cloud that this host is rented from, its type of instance and its region.

The firmware names the cloud, and on AWS the type of instance: files that every process may read. The metadata service
at 169.254.169.254 knows the rest, and is asked where the setting `cloud_metadata` allows it. Only leaves are asked:
what they are below may hold keys of users. Documentation: "Use the Instance Metadata Service" (AWS, version 2), "VM
metadata" (Google), "Azure Instance Metadata Service", "Getting Instance Metadata" (Oracle).
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.files import read_text
from gpuwarden_agent.probe import Value

SERVICE = ("169.254.169.254", 80)
TIMEOUT_S = 1.0
"""For each request: the service is on the host's own hypervisor."""
FIRST_S = 1.0
"""Longest wait of the first call for the service."""
ANSWER_BYTES_MAX = 8192
RETRY_S = (60.0, 60.0, 60.0, 600.0, 3600.0)
"""Pauses after failures; the last one stays."""

_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""chassis_asset_tag of every virtual machine of Azure; Hyper-V elsewhere has the same vendor."""
_TOKEN = ("/latest/api/token", "X-aws-ec2-metadata-token")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")

Ask = Callable[[str, str, Mapping[str, str]], str]
"""Method, path and headers of a request; returns the body of a 200. Raises OSError, ValueError."""


@dataclass(frozen=True, slots=True)
class CloudFacts:
    """What is known about the instance; None: not told."""

    cloud: str
    instance_type: str | None = None
    region: str | None = None
    spot: bool | None = None

    def row(self) -> dict[str, Value]:
        """Columns of `nodes`."""
        known = {
            "cloud": self.cloud,
            "instance_type": self.instance_type,
            "region": self.region,
            "spot": self.spot,
        }
        return {name: value for name, value in known.items() if value is not None}


def firmware_facts(sys: Path) -> CloudFacts | None:
    """What the firmware tells. None: it names none of the four clouds."""
    dmi = sys / "class/dmi/id"
    vendor = _line(dmi / "sys_vendor")
    tag = _line(dmi / "chassis_asset_tag")
    product = _line(dmi / "product_name")
    if vendor == "Amazon EC2":
        return CloudFacts("aws", product if "." in product else None)
    if vendor == "Google" and product == "Google Compute Engine":
        return CloudFacts("gcp")
    if tag == _AZURE_TAG:
        return CloudFacts("azure")
    return CloudFacts("oci") if tag == "OracleCloud.com" else None


def _line(path: Path) -> str:
    return (read_text(path) or "").strip()


def asked_facts(cloud: str, ask: Ask) -> CloudFacts:
    """What the cloud's metadata service tells. Raises OSError, ValueError."""
    return _CLOUDS[cloud](ask)


def _aws(ask: Ask) -> CloudFacts:
    path, header = _TOKEN
    token = ask("PUT", path, {f"{header}-ttl-seconds": "60"})
    headers = {header: token.strip()}
    folder = "/latest/meta-data/"
    kind = ask("GET", f"{folder}instance-type", headers).strip()
    region = ask("GET", f"{folder}placement/region", headers).strip()
    cycle = ask("GET", f"{folder}instance-life-cycle", headers).strip()
    return CloudFacts("aws", _text(kind), _text(region), cycle == "spot")


def _gcp(ask: Ask) -> CloudFacts:
    headers = {"Metadata-Flavor": "Google"}
    folder = "/computeMetadata/v1/instance/"
    # projects/123/machineTypes/a3-highgpu-8g, projects/123/zones/us-central1-a
    kind = ask("GET", f"{folder}machine-type", headers).strip().rpartition("/")[2]
    zone = ask("GET", f"{folder}zone", headers).strip().rpartition("/")[2]
    preemptible = ask("GET", f"{folder}scheduling/preemptible", headers).strip()
    return CloudFacts("gcp", _text(kind), _text(zone.rpartition("-")[0]), preemptible == "TRUE")


def _azure(ask: Ask) -> CloudFacts:
    def leaf(name: str) -> str:
        path = f"/metadata/instance/compute/{name}?api-version=2021-02-01&format=text"
        return ask("GET", path, {"Metadata": "true"}).strip()

    return CloudFacts(
        "azure", _text(leaf("vmSize")), _text(leaf("location")), leaf("priority") == "Spot"
    )


def _oci(ask: Ask) -> CloudFacts:
    headers = {"Authorization": "Bearer Oracle"}
    kind = ask("GET", "/opc/v2/instance/shape", headers).strip()
    region = ask("GET", "/opc/v2/instance/canonicalRegionName", headers).strip()
    return CloudFacts("oci", _text(kind), _text(region))


_CLOUDS: Mapping[str, Callable[[Ask], CloudFacts]] = {
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
    "oci": _oci,
}


def _text(value: object) -> str | None:
    """A name as clouds have them; anything else is not from the service of a cloud."""
    if not isinstance(value, str) or not value:
        return None
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value[:50]!r} is not a name of a cloud")
    return value


def metadata_service(address: tuple[str, int] = SERVICE, timeout_s: float = TIMEOUT_S) -> Ask:
    """Asks the service at an address; proxies of the environment are not used."""
    import http.client  # heavy, and most agents do not ask

    def ask(method: str, path: str, headers: Mapping[str, str]) -> str:
        connection = http.client.HTTPConnection(*address, timeout=timeout_s)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            body = answer.read(ANSWER_BYTES_MAX)
        except http.client.HTTPException as error:
            raise OSError(f"no answer of HTTP: {error!r}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise OSError(f"{path.partition('?')[0]} answers with status {answer.status}")
        return body.decode("utf-8")

    return ask


class CloudHost:
    """The instance of a cloud that this host is. Its facts stay as they are while it runs."""

    def __init__(
        self,
        firmware: CloudFacts,
        clock: Clock,
        ask: Ask | None,
        retry_s: Sequence[float] = RETRY_S,
    ) -> None:
        """`ask`: None: the metadata service is not to be asked."""
        self._known = firmware
        self._clock = clock
        self._ask = ask
        self._retry_s = list(retry_s)
        self._due_s: float | None = None if ask is None else clock.monotonic()
        self._thread: threading.Thread | None = None
        self.error: str | None = None
        """Why the metadata service did not answer; None: it did, or was not asked."""

    def row(self) -> dict[str, Value]:
        """Columns of `nodes` that are known. The first call waits for the service, `FIRST_S` at most."""
        is_first = self._thread is None
        is_due = self._due_s is not None and self._clock.monotonic() >= self._due_s
        if is_due and (self._thread is None or not self._thread.is_alive()):
            self._due_s = self._clock.monotonic() + self._retry_s[0]
            self._thread = threading.Thread(target=self._learn, name="cloud", daemon=True)
            self._thread.start()
            if is_first:
                self._thread.join(FIRST_S)
        return self._known.row()

    def _learn(self) -> None:
        assert self._ask is not None
        try:
            self._known = asked_facts(self._known.cloud, self._ask)
        except (OSError, ValueError) as error:
            self.error = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if len(self._retry_s) > 1:
                del self._retry_s[0]
        else:
            self.error, self._due_s = None, None


def cloud_host(sys: Path, clock: Clock, *, ask_metadata: bool) -> CloudHost | None:
    """The instance that this host is. None: the firmware names no cloud, and then nothing is asked."""
    firmware = firmware_facts(sys)
    if firmware is None:
        return None
    return CloudHost(firmware, clock, metadata_service() if ask_metadata else None)
