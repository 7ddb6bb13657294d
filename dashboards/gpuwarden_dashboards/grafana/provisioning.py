"""Makes the files for Grafana's folder `provisioning`: data sources, dashboards, and where Grafana finds these."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import urlsplit

FOLDER = Path(__file__).parent
"""The dashboards, in a folder for each of `SETS`."""
SETS = ("prometheus", "postgresql")
"""Types of data sources."""
PAGE_URL = "http://127.0.0.1:8750"
"""Address of the collector's page in the dashboards, until an export replaces it."""
TOKEN = "GPUWARDEN_TOKEN"
"""Variable of Grafana's environment with the token."""
_SAMPLES_EVERY = "15s"
"""Makes Grafana's rates cover a minute: some counters are read every ten seconds."""


@dataclass(frozen=True, slots=True)
class CollectorAddress:
    """How Grafana reaches the collector."""

    url: str
    """Without a slash at its end."""
    postgres_port: int
    ca: str = ""
    """PEM of the CA to trust; empty: the system's."""

    @property
    def host(self) -> str:
        """Its name or address."""
        host = urlsplit(self.url).hostname or ""
        return f"[{host}]" if ":" in host else host

    @property
    def has_tls(self) -> bool:
        """Whether it has a certificate."""
        return self.url.startswith("https://")

    @property
    def needs_token(self) -> bool:
        """Whether it is asked over a network."""
        return self.host not in ("127.0.0.1", "localhost", "[::1]")


def address_of(url: str, postgres_port: int, ca: str = "") -> CollectorAddress:
    """Check an address. Raises ValueError."""
    parts = urlsplit(url)
    is_known = parts.scheme in ("http", "https") and parts.hostname
    if not is_known or parts.query or parts.fragment or "$" in url:
        raise ValueError(
            f"{url!r} is not the collector's address: write it as https://collector.example:8750"
        )
    return CollectorAddress(url.rstrip("/"), postgres_port, ca)


def files(
    address: CollectorAddress, folder: PurePath, sets: Sequence[str] = SETS
) -> Mapping[PurePath, str]:
    """Text of each file by its path. `folder`: where Grafana reads them, its folder `provisioning`."""
    boards = folder / "dashboards" / "gpuwarden"
    found = {
        boards / name / path.name: path.read_text().replace(
            json.dumps(PAGE_URL), json.dumps(address.url)
        )
        for name in sets
        for path in sorted((FOLDER / name).glob("*.json"))
    }
    found[folder / "datasources" / "gpuwarden.yaml"] = _yaml(_data_sources(address, sets))
    found[folder / "dashboards" / "gpuwarden.yaml"] = _yaml(_providers(boards))
    return found


def _yaml(document: object) -> str:
    """JSON, which is YAML too."""
    return f"# Written by `gpuwarden grafana export`.\n{json.dumps(document, indent=2)}\n"


def _data_sources(address: CollectorAddress, sets: Sequence[str]) -> object:
    made = {"prometheus": _prometheus, "postgresql": _postgresql}
    return {"apiVersion": 1, "datasources": [made[name](address) for name in sets]}


def _prometheus(address: CollectorAddress) -> object:
    options: dict[str, object] = {"httpMethod": "POST", "timeInterval": _SAMPLES_EVERY}
    secret = {}
    if address.needs_token:
        options["httpHeaderName1"] = "Authorization"
        secret["httpHeaderValue1"] = f"Bearer ${TOKEN}"
    if address.ca:
        options["tlsAuthWithCACert"] = True
        secret["tlsCACert"] = address.ca
    return {
        "name": "gpuwarden (PromQL)",
        "uid": "gpuwarden-prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": f"{address.url}/prometheus",
        "jsonData": options,
        "secureJsonData": secret,
    }


def _postgresql(address: CollectorAddress) -> object:
    options: dict[str, object] = {
        "database": "gpuwarden",
        "sslmode": "verify-full" if address.has_tls else "disable",
        "postgresVersion": 1500,
        "timescaledb": False,
    }
    secret = {}
    if address.needs_token:
        secret["password"] = f"${TOKEN}"
    if address.ca:
        options["tlsConfigurationMethod"] = "file-content"
        secret["tlsCACert"] = address.ca
    return {
        "name": "gpuwarden (SQL)",
        "uid": "gpuwarden-postgresql",
        "type": "grafana-postgresql-datasource",
        "access": "proxy",
        "url": f"{address.host}:{address.postgres_port}",
        "user": "gpuwarden",
        "jsonData": options,
        "secureJsonData": secret,
    }


def _providers(boards: PurePath) -> object:
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "gpuwarden",
                "folder": "gpuwarden",
                "type": "file",
                "options": {"path": str(boards)},
            }
        ],
    }
