"""Makes the files for Grafana's folder `provisioning`: data source, dashboards, and where Grafana finds these."""

import json
from collections.abc import Mapping
from pathlib import PurePath
from urllib.parse import urlsplit

from gpuwarden_dashboards.grafana.boards import boards
from gpuwarden_dashboards.grafana.dashboard import DATA_SOURCE

TOKEN = "GPUWARDEN_TOKEN"
"""Variable of Grafana's environment with the token."""
_SAMPLES_EVERY = "15s"
"""Makes Grafana's rates cover a minute: some counters are read every ten seconds."""


def checked_collector_url(url: str) -> str:
    """The collector's address without a slash at its end. Raises ValueError."""
    parts = urlsplit(url)
    is_address = parts.scheme in ("http", "https") and parts.hostname
    if not is_address or parts.query or parts.fragment or "$" in url:
        raise ValueError(
            f"{url!r} is not the collector's address: write it as https://collector.example:8750"
        )
    return url.rstrip("/")


def needs_token(collector_url: str) -> bool:
    """Whether the collector is asked over a network."""
    return urlsplit(collector_url).hostname not in ("127.0.0.1", "localhost", "::1")


def files(collector_url: str, folder: PurePath, ca: str = "") -> Mapping[PurePath, str]:
    """Text of each file by its path.

    `collector_url`: as Grafana and browsers reach it; `folder`: where Grafana reads them, its folder
    `provisioning`; `ca`: PEM of the CA to trust, empty: the system's.
    """
    dashboards = folder / "dashboards" / "gpuwarden"
    return {
        **{
            dashboards
            / f"{board.name}.json": f"{json.dumps(board.json(collector_url), indent=1)}\n"
            for board in boards()
        },
        folder / "datasources" / "gpuwarden.yaml": _yaml(_data_source(collector_url, ca)),
        folder / "dashboards" / "gpuwarden.yaml": _yaml(_provider(dashboards)),
    }


def _yaml(document: object) -> str:
    """JSON, which is YAML too."""
    return f"# Written by `gpuwarden grafana export`.\n{json.dumps(document, indent=2)}\n"


def _data_source(collector_url: str, ca: str) -> object:
    options: dict[str, object] = {"httpMethod": "POST", "timeInterval": _SAMPLES_EVERY}
    secret = {}
    if needs_token(collector_url):
        options["httpHeaderName1"] = "Authorization"
        secret["httpHeaderValue1"] = f"Bearer ${TOKEN}"
    if ca:
        options["tlsAuthWithCACert"] = True
        secret["tlsCACert"] = ca
    source = {
        "name": DATA_SOURCE,
        "uid": DATA_SOURCE,
        "type": "prometheus",
        "access": "proxy",
        "url": f"{collector_url}/prometheus",
        "jsonData": options,
        "secureJsonData": secret,
    }
    return {"apiVersion": 1, "datasources": [source]}


def _provider(dashboards: PurePath) -> object:
    provider = {
        "name": "gpuwarden",
        "folder": "gpuwarden",
        "type": "file",
        "options": {"path": str(dashboards)},
    }
    return {"apiVersion": 1, "providers": [provider]}
