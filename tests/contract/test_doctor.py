"""A check says how bad it is; a unit's state comes from systemd's own words."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.doctor import FAIL, OK, WARN, Check, check_life, check_unit, worst

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WELL = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "NRestarts": "0",
}


def test_the_worst_check_is_the_status_of_all() -> None:
    checks = [Check("a", OK, ""), Check("b", FAIL, ""), Check("c", WARN, "")]
    assert [worst(checks[:1]), worst(checks), worst(checks[::2]), worst([])] == [
        OK, FAIL, WARN, OK,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("days", "status", "says"),
    [
        (22, OK, "in 22 days"),
        (21, WARN, "in 21 days"),
        (0, FAIL, "expired"),
        (-400, FAIL, "expired"),
    ],
)
def test_what_ends_is_told_three_weeks_before(days: int, status: str, says: str) -> None:
    check = check_life("certificate", "that of x", NOW + timedelta(days=days), NOW, "renew it")
    assert (check.status, says in check.finding) == (status, True)
    assert check.remedy == ("" if status is OK else "renew it")


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({}, OK, "is active"),
        ({"ActiveState": "failed", "SubState": "failed"}, FAIL, "is failed"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, FAIL, "auto-restart"),
        ({"UnitFileState": "disabled"}, WARN, "would not start with the host"),
        ({"NRestarts": "4"}, WARN, "4 restarts"),
    ],
)
def test_a_unit_that_failed_or_restarts_is_a_finding(
    change: dict[str, str], status: str, says: str
) -> None:
    asked = []

    def ask(argv: Sequence[str]) -> str:
        asked.append(argv[-1])
        return "".join(f"{name}={value}\n" for name, value in (WELL | change).items())

    check = check_unit("service", "agent", is_systemd=True, ask=ask)
    assert check is not None
    assert (check.status, says in check.finding) == (status, True), check
    assert asked == ["gpuwarden-agent.service"]
    assert (check.remedy == "") == (status == OK)


def test_a_host_without_systemd_or_the_unit_has_nothing_to_say() -> None:
    assert check_unit("service", "agent", is_systemd=False) is None
    missing = check_unit("service", "agent", is_systemd=True, ask=lambda _: "LoadState=not-found\n")
    assert missing is None
    assert check_unit("service", "agent", is_systemd=True, ask=lambda _: "") is None


def test_a_systemctl_that_does_not_answer_is_told() -> None:
    def ask(_: Sequence[str]) -> str:
        raise OSError("no answer within 10 s")

    check = check_unit("service", "agent", is_systemd=True, ask=ask)
    assert check == Check("service", WARN, "systemctl: no answer within 10 s")
