"""Writes the dashboards: `make dashboards`."""

from deploy.grafana import promql, sql

from gpuwarden_dashboards.grafana.provisioning import FOLDER


def wanted() -> dict[str, str]:
    """Text of each file below `FOLDER`, by its path."""
    return {board.path: board.json() for board in [*promql.boards(), *sql.boards()]}


def main() -> None:
    """Write all dashboards, and delete those that are no more."""
    files = wanted()
    for path in FOLDER.rglob("*.json"):
        if str(path.relative_to(FOLDER)) not in files:
            path.unlink()
    for name, text in files.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
