"""A document becomes a dashboard or a list of what is wrong, and old versions are forgotten within bounds."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.dashboard import (
    DASHBOARDS_MAX,
    DELETED_KEPT,
    KINDS,
    PANELS_MAX,
    PROBLEMS_MAX,
    SQL_CHARACTERS_MAX,
    VERSIONS_MAX,
    DashboardError,
    DashboardVersion,
    conflict_of,
    dashboard_of,
    deletion_conflict_of,
    forgotten,
    problems_of,
    text_of,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)
PANEL: dict[str, Any] = {"title": "Power", "kind": "line", "sql": "SELECT ts, power_watts FROM x"}
CHART: dict[str, Any] = {
    "title": "n1", "kind": "chart", "chart": "node=n1&metrics=util_percent,host.cpu_util_percent",
}  # fmt: skip


def with_panel(**changes: Any) -> dict[str, Any]:
    return {"title": "Training", "panels": [PANEL | changes]}


def test_a_dashboard_has_its_defaults_and_is_the_same_when_read_again() -> None:
    thresholds = {"warning": 70, "critical": 90.5}
    document = {"title": " Übersicht ", "panels": [PANEL, CHART | {"width": 12, "unit": "percent", "thresholds": thresholds}]}  # fmt: skip
    made = dashboard_of(document)
    assert made["title"] == "Übersicht"
    assert made["panels"][0] == PANEL | {"width": 6, "height": 4}
    assert made["panels"][1]["thresholds"] == thresholds
    assert dashboard_of(json.loads(text_of(made))) == made


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], 'a dashboard is a JSON object: write {"title": "...", "panels": []}'),
        ({"title": "a", "panels": {}}, "panels: it must be a list of panels, [] for none"),
        ({"title": "a\n", "panels": []}, "title: it must be a text of 1 to 80 printable characters"),
        ({"title": "a", "panels": [], "x": 1}, "x: there is no such key; there are title, panels"),
        ({"title": "a", "panels": [PANEL] * 61}, "panels: there are 61, and 60 is the limit: make two dashboards"),
        ({"title": "a", "panels": ["x"]}, "panels[0]: a panel must be an object with title and kind"),
        (with_panel(kind="pie"), "panels[0].kind: it must be one of line, bar, number, table, map, chart"),
        (with_panel(kind=[]), "panels[0].kind: it must be one of line, bar, number, table, map, chart"),
        (with_panel(sql=" "), "panels[0].sql: it must be a SELECT of 1 to 20000 characters, without NUL"),
        (with_panel(sql="x\ud800"), "panels[0].sql: it must be a SELECT of 1 to 20000 characters, without NUL"),
        (with_panel(chart="node=n1"), "panels[0].chart: a panel of kind line has sql instead; remove chart, or set kind to chart"),
        (with_panel(width=13), "panels[0].width: it must be a whole number from 1 to 12"),
        (with_panel(height=True), "panels[0].height: it must be a whole number from 1 to 12"),
        (with_panel(unit=7), "panels[0].unit: it must be a text of at most 30 printable characters"),
        (with_panel(thresholds={}), 'panels[0].thresholds: it must be an object with warning or critical: {"critical": 90}'),
        (with_panel(thresholds={"critical": 10**400}), "panels[0].thresholds.critical: it must be a number"),
        (with_panel(thresholds={"critical": float("nan")}), "panels[0].thresholds.critical: it must be a number"),
        (with_panel(thresholds={"red": 1}), "panels[0].thresholds.red: there is no such key; there are warning, critical"),
        ({"title": "a", "panels": [CHART | {"chart": "node=a&gpu_uuid=b&metrics=x"}]}, "panels[0].chart: it must have either node or gpu_uuid: write node=n1&metrics=util_percent"),
        ({"title": "a", "panels": [CHART | {"chart": "node=a&metrics="}]}, "panels[0].chart: it may have node, gpu_uuid, job, metrics, each once and not empty"),
        ({"title": "a", "panels": [CHART | {"chart": "node=a"}]}, "panels[0].chart: metrics must be 1 to 40 names of docs/metrics.md, separated by commas"),
        ({"title": "a", "panels": [CHART | {"chart": "node=a&metrics=util_percent,"}]}, "panels[0].chart: metrics must be 1 to 40 names of docs/metrics.md, separated by commas"),
        ({"title": "a", "panels": [CHART | {"chart": "node=a&metrics=util_percent,cpu_util_percent"}]}, "panels[0].chart: there is no metric cpu_util_percent: see docs/metrics.md; metrics of hosts begin with host."),
        ({"title": "a", "panels": [CHART | {"chart": "node=a&metrics=clocks_event_reasons"}]}, "panels[0].chart: there is no metric clocks_event_reasons: see docs/metrics.md; metrics of hosts begin with host."),
        ({"title": "a", "panels": [CHART | {"chart": "//evil.example/"}]}, "panels[0].chart: it cannot be read as a query: write node=n1&metrics=util_percent"),
    ],
)  # fmt: skip
def test_a_problem_is_one_line_with_its_place(document: Any, said: str) -> None:
    assert problems_of(document) == [said]
    with pytest.raises(DashboardError) as caught:
        dashboard_of(document)
    assert str(caught.value) == said


def test_the_whole_is_bounded_and_so_is_the_list_of_problems() -> None:
    long = {"title": "a", "panels": [PANEL | {"sql": "x" * SQL_CHARACTERS_MAX}] * 20}
    assert problems_of(long) == ["the dashboard has more than 262144 bytes: make two of it"]
    wrong = problems_of({"title": "a", "panels": [{}] * PANELS_MAX})
    assert len(wrong) == PROBLEMS_MAX + 1
    assert wrong[-1] == f"and {2 * PANELS_MAX - PROBLEMS_MAX} more"


RUBBISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["title", "panels", "kind", "sql", "chart", "width", "height", "unit", "thresholds", "critical", "x"]),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@given(RUBBISH)
def test_any_json_is_a_dashboard_or_is_refused_in_lines(document: Any) -> None:
    found = problems_of(document)
    assert all(line.isprintable() and len(line) < 200 for line in found)
    if not found:
        made = dashboard_of(document)
        assert dashboard_of(json.loads(text_of(made))) == made


def test_a_save_must_name_the_newest_version() -> None:
    mine = version("a", 3, author="ada")
    gone = version("a", 4, is_deleted=True)
    assert conflict_of(None, 0, 0) is None
    assert conflict_of(mine, 3, 1) is None
    assert conflict_of(gone, 0, 1) is None
    assert "does not exist or was deleted" in str(conflict_of(gone, 4, 1))
    assert "does not exist or was deleted" in str(conflict_of(None, 1, 1))
    assert "choose another name" in str(conflict_of(mine, 0, 1))
    assert "ada has saved version 3 meanwhile, and this changes version 2" in str(
        conflict_of(mine, 2, 1)
    )
    assert "200 dashboards, which is the limit" in str(conflict_of(None, 0, DASHBOARDS_MAX))


def test_a_deletion_may_name_the_newest_version() -> None:
    mine = version("a", 3)
    assert deletion_conflict_of(mine, 3) is None
    for other in (0, 2, 4):
        said = f"the newest version of a is 3, and this deletes version {other}: read it again, then delete"
        assert deletion_conflict_of(mine, other) == said


def version(
    name: str, number: int, *, days: float = 0, is_deleted: bool = False, size: int = 10, author: str | None = None
) -> DashboardVersion:  # fmt: skip
    at = NOW - timedelta(days=days)
    return DashboardVersion(name, number, "A", 1, author, at, is_deleted, size)


def test_versions_beyond_the_limit_and_dashboards_deleted_long_ago_are_forgotten() -> None:
    many = [version("a", number, days=100 - number) for number in range(1, VERSIONS_MAX + 3)]
    old = [version("b", 1, days=99), version("b", 2, days=DELETED_KEPT.days + 1, is_deleted=True)]
    back = [version("c", 1, days=90, is_deleted=True), version("c", 2, days=80)]
    gone = forgotten([*many, *old, *back], NOW)
    assert {(one.name, one.version) for one in gone} == {("a", 1), ("a", 2), ("b", 1), ("b", 2)}


def test_a_deleted_dashboard_does_not_come_back_when_room_is_made() -> None:
    dead = [version("a", 1, days=3), version("a", 2, days=2, is_deleted=True, size=0)]
    large = version("b", 1, size=100)
    assert forgotten([*dead, large], NOW, bytes_max=100) == [dead[0]]
    assert forgotten([dead[1], large], NOW, bytes_max=10) == []


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 60), st.booleans(), st.integers(1, 50)),
        max_size=25, unique_by=lambda one: one[:2],
    ),
    st.integers(0, 400),
)  # fmt: skip
def test_what_exists_stays_and_the_rest_fits(
    rows: list[tuple[str, int, int, bool, int]], room: int
) -> None:
    kept = [
        version(n, v, days=d, is_deleted=gone, size=0 if gone else s) for n, v, d, gone, s in rows
    ]
    over = forgotten(kept, NOW, bytes_max=room)
    assert len(set(over)) == len(over) and set(over) <= set(kept)
    newest = {one.name: one for one in sorted(kept, key=lambda one: one.version)}
    current = {one for one in newest.values() if not one.is_deleted}
    left = set(kept) - set(over)
    assert current <= left
    for name, one in newest.items():
        assert one in left or not any(other.name == name for other in left)
    assert sum(one.size_bytes for one in left - current) <= max(
        0, room - sum(one.size_bytes for one in current)
    )
