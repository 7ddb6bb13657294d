"""Makes the addresses of Grafana's dashboards, to which our pages link."""

from urllib.parse import urlencode, urlsplit

from gpuwarden.lifecycle import StartError
from gpuwarden_dashboards.grafana.dashboard import uid


def checked_url(grafana_url: str | None) -> str | None:
    """The address without a slash at its end. Raises StartError."""
    if grafana_url is None:
        return None
    parts = urlsplit(grafana_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise StartError(
            f"grafana_url: {grafana_url!r} is not an address: write it as https://grafana.example"
        )
    return grafana_url.rstrip("/")


def dashboard_url(grafana_url: str, name: str, **variables: object) -> str:
    """Address of a dashboard of `gpuwarden grafana export`."""
    given = urlencode({f"var-{key}": value for key, value in variables.items()})
    return f"{grafana_url}/d/{uid(name)}?{given}"
