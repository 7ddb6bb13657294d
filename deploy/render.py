"""Renders the Helm chart: into deploy/kubernetes/ for users without Helm, and for the tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHART = Path(__file__).parent / "helm" / "gpuwarden"
PLAIN = Path(__file__).parent / "kubernetes"
NAME = NAMESPACE = "gpuwarden"
HEADING = "# Made from deploy/helm/gpuwarden by `make manifests`, with the chart's own values.\n"


def rendered(values: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Manifests by file, without empty ones."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        found = chart.render(dict(values or {}), name=NAME, namespace=NAMESPACE)
    named = {Path(path).name: text for path, text in found.items() if path.endswith(".yaml")}
    return {name: text for name, text in sorted(named.items()) if text.strip()}


def plain() -> dict[str, str]:
    """The wanted files of deploy/kubernetes."""
    manifests = {
        name: text.replace(
            "app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl"
        )
        for name, text in rendered().items()
    }
    namespace = (
        f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  labels:\n"
        "    # The agents' hostPID and hostPath.\n    pod-security.kubernetes.io/enforce: privileged\n"
    )
    files = {"00-namespace.yaml": namespace, **manifests}
    return {name: HEADING + text.strip() + "\n" for name, text in files.items()}


def main() -> None:
    """Write the manifests."""
    for path in PLAIN.glob("*.yaml"):
        path.unlink()
    for name, text in plain().items():
        (PLAIN / name).write_text(text)


if __name__ == "__main__":
    main()
