"""Routes decide who is notified, how soon, and at which address."""

import re
from fnmatch import translate

import pytest
from tests.rules.notify.alerts import make_alert

from gpuwarden.alert import Severity
from gpuwarden_rules.notify.routing import PACES, Owners, Recipient, Route, RoutingPolicy


def globs(*texts: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(text)) for text in texts)


@pytest.mark.parametrize(
    ("name", "glob", "matches"),
    [
        ("node", "dgx-*", True), ("node", "hgx-*", False), ("node", "dgx-0", False),
        ("severity", "critical", True), ("rule", "gpu_*", True), ("simulated", "false", True),
        ("owner", "ann", True), ("rack", "?*", False), ("rack", "", True),
    ],
)  # fmt: skip
def test_a_glob_fits_a_label_or_what_the_alert_is(name, glob, matches) -> None:
    route = Route(receivers=("a",), match={name: globs(glob)})
    assert route.matches(make_alert(owner="ann")) is matches


def test_one_of_several_globs_and_every_label_must_fit() -> None:
    match = {"node": globs("x", "dgx-*"), "gpu": globs("0")}
    assert Route(receivers=("a",), match=match).matches(make_alert(gpu=0))
    assert not Route(receivers=("a",), match=match).matches(make_alert(gpu=1))


def test_the_first_match_ends_the_search_unless_it_continues() -> None:
    recipients = dict.fromkeys("abc", Recipient())
    routes = [
        Route(receivers=("a",), continues=True),
        Route(receivers=("b", "a")),
        Route(receivers=("c",)),
    ]
    found = RoutingPolicy(recipients, routes).routes_of(make_alert())
    assert [name for name, _ in found] == ["a", "b"]


def test_a_route_changes_the_pace_that_it_names() -> None:
    pace = Route(receivers=(), interval_s=7).pace(Severity.WARNING)
    usual = PACES[Severity.WARNING]
    assert (pace.interval_s, pace.repeat_s) == (7, usual.repeat_s)


@pytest.mark.parametrize(
    "user",
    [
        "me@elsewhere.example,x", "me@elsewhere.example", "a b", "a\r\nBcc: me", "a,b", "a;b", "a?cc=me",
        "a&to=me", "a/../b", "a%2Cme", "<me>", "", "-x", "é", "a" * 80, "a\u202eb", "{user}",
    ],
)  # fmt: skip
def test_a_name_that_is_no_username_decides_nothing(user: str) -> None:
    assert Owners("{user}@example.com").address(user) is None
    assert Owners("{user}@example.com", {}, "all@example.com").address(user) == "all@example.com"
    assert (
        Owners("{user}@example.com", {user: "known@example.com"}).address(user)
        == "known@example.com"
    )


@pytest.mark.parametrize("user", ["ann", "a.b-c_d+e", "svc1", "WIN$", "_x"])
def test_usernames_go_into_addresses(user: str) -> None:
    assert Owners("{user}@example.com").address(user) == f"{user}@example.com"


def test_an_owner_has_an_address_by_template_or_exception() -> None:
    owners = Owners("{user}@example.com", {"root": "ops@example.com"}, "all@example.com")
    assert [owners.address(user) for user in ("ann", "root", None)] == [
        "ann@example.com", "ops@example.com", "all@example.com",
    ]  # fmt: skip
    assert Owners().address("ann") is None
