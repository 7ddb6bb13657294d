"""The file of receivers and routes: what it means, and where each mistake is."""

from datetime import UTC, time
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each
from tests.rules.notify.alerts import make_alert

from gpuwarden.alert import Severity
from gpuwarden_rules.definition.yaml_positions import RuleFileError
from gpuwarden_rules.notify.settings import load, parse

WHOLE = """
timezone: Europe/Berlin
link: https://gpuwarden.example.com
receivers:
  - {name: oncall, apprise: "${PAGER}", resolved: false, format: short}
  - {name: hook, webhook: https://example.com/gpus, secret: "${file:FOLDER/secret}"}
  - {name: am, alertmanager: "http://127.0.0.1:9093"}
  - {name: log, file: /var/log/gpuwarden/alerts.jsonl}
  - {name: mail, apprise: "mailto://u:p@example.com?to={owner}"}
  - {name: out, stdout: true, format: json}
routes:
  - receivers: [oncall]
    match: {severity: critical, node: ["dgx-*", "hgx-*"]}
    continue: true
    update_interval: 0s
    repeat_interval: 1h
  - receivers: [hook, am]
owners: {address: "{user}@example.com", exceptions: {root: ops@example.com}, nobody: all@example.com}
digests:
  - {receivers: [hook], at: 08:30, top: 3}
reports:
  - {receivers: [hook]}
  - {receivers: [out], every: week, day: friday, at: "17:00", by: username, only: {team: vision}}
  - {receivers: [out], every: month, day: 3}
"""


def test_a_file_with_every_key_is_read_without_showing_secrets(tmp_path) -> None:
    (tmp_path / "secret").write_text("geheim\n")
    text = WHOLE.replace("FOLDER", str(tmp_path))
    notify = parse(text, "n.yaml", {"PAGER": "json://localhost/key"})
    by_name = {plan.name: plan for plan in notify.receivers}
    assert by_name["oncall"].target == "json://localhost/key"
    assert by_name["hook"].secret == "geheim"
    assert "geheim" not in repr(notify)
    assert "localhost" not in repr(notify)
    assert notify.policy.recipients["am"].keeps_state
    assert notify.policy.recipients["mail"].is_personal
    assert not notify.policy.recipients["oncall"].wants_resolved
    assert notify.style.zone == ZoneInfo("Europe/Berlin")
    (digest,) = notify.digests
    assert (digest.at, digest.top, digest.receivers) == (time(8, 30), 3, ("hook",))
    usual, friday, monthly = notify.reports
    assert (usual.every, usual.day, usual.at, usual.by, usual.only) == (
        "week",
        0,
        time(8),
        "team",
        {},
    )
    assert (friday.day, friday.at, friday.by, friday.only) == (
        4,
        time(17),
        "username",
        {"team": "vision"},
    )
    assert (monthly.every, monthly.day, monthly.zone) == ("month", 3, ZoneInfo("Europe/Berlin"))
    assert len({plan.name for plan in notify.reports}) == 3
    found = list(notify.policy.routes_of(make_alert(node="hgx-1")))
    assert [name for name, _ in found] == ["oncall", "hook", "am"]
    pace = found[0][1].pace(Severity.CRITICAL)
    assert (pace.interval_s, pace.repeat_s) == (0, 3600)
    assert [n for n, _ in notify.policy.routes_of(make_alert(node="cpu-1"))] == ["hook", "am"]
    assert notify.policy.owners.address("root") == "ops@example.com"


def test_without_routes_all_is_told_to_all() -> None:
    notify = parse("receivers: [{name: a, stdout: true}, {name: b, stdout: true}]", "n", {})
    assert [name for name, _ in notify.policy.routes_of(make_alert())] == ["a", "b"]
    assert notify.style.zone is UTC


@each(
    ("text", "problem"),
    [
        ("", "n.yaml:1:1: the file is empty"),
        ("receivers: []", "n.yaml:1:12: at least one receiver is needed"),
        ("receivers:\n  - {name: a, teams: x}", "n.yaml:2:15: unknown key 'teams'"),
        ("receivers:\n  - {name: a, slack: x}", "n.yaml:2:5: slack needs the `token` of a bot"),
        ("receivers:\n  - {name: a, stdout: true, token: x}", "n.yaml:2:36: only slack has a token"),
        ("receivers:\n  - {name: a}", "n.yaml:2:5: a receiver has exactly one of apprise, slack, webhook"),
        (
            "receivers:\n  - {name: a, file: /x, stdout: true}",
            "alertmanager, file, stdout, not file and stdout",
        ),
        ("receivers:\n  - {name: a, file: x}", "n.yaml:2:21: the path must be absolute"),
        ("receivers:\n  - {name: a, webhook: example.com}", "n.yaml:2:24: must be an address"),
        ("receivers:\n  - {name: a, apprise: nope}", "n.yaml:2:24: not an address that apprise"),
        ("receivers:\n  - {name: a, webhook: '${GONE}'}", "n.yaml:2:25: the environment has no GONE"),
        ("receivers:\n  - {name: a, webhook: '${a b}'}", "n.yaml:2:25: ${a b} must be ${NAME}"),
        (
            "receivers:\n  - {name: a, webhook: '${file:/none}'}",
            "n.yaml:2:25: /none cannot be read: No such file or directory",
        ),
        ("receivers:\n  - {name: a b, stdout: true}", "n.yaml:2:12: a name has letters"),
        ("receivers:\n  - {name: a, stdout: true}\n  - {name: a, stdout: true}", "'a' stands twice"),
        ("receivers:\n  - {name: a, stdout: true, secret: x}", "n.yaml:2:37: only a webhook"),
        ("receivers:\n  - {name: a, webhook: http://h, secret: whsec_%}", "n.yaml:2:42: after whsec_"),
        ("receivers:\n  - {name: a, stdout: true, format: html}", "'html' must be one of text, m"),
        ("receivers:\n  - {name: a, stdout: 'true'}", "n.yaml:2:23: must be true or false"),
    ],
)  # fmt: skip
def test_a_mistake_of_a_receiver_has_its_place(text, problem) -> None:
    with pytest.raises(RuleFileError) as error:
        parse(text, "n.yaml", {})
    assert problem in str(error.value)


@each(
    ("text", "problem"),
    [
        ("routes: [{receivers: [b]}]", "n.yaml:2:23: unknown receiver 'b'; known: a"),
        ("routes: [{}]", "n.yaml:2:10: key 'receivers' is missing"),
        (
            "routes: [{receivers: [a], update_interval: soon}]",
            "n.yaml:2:44: not a duration; write 90s",
        ),
        ("routes: [{receivers: [a], repeat_interval: 1s}]", "must be at least 60s"),
        ("routes: [{receivers: [a], match: [x]}]", "must be a mapping of keys to values"),
        ("timezone: Mars/Base", "n.yaml:2:11: unknown time zone 'Mars/Base'"),
        ("owners: {address: x@example.com}", "the address has no {user}"),
        ("digests: [{receivers: [a], at: 25:00}]", "n.yaml:2:32: '25:00' is not a time of day"),
        ("reports: [{receivers: [a], every: day}]", "'day' must be one of week, month"),
        ("reports: [{receivers: [a], day: 3}]", "n.yaml:2:33: "),
        ("reports: [{receivers: [a], day: mon}]", "'mon' must be one of monday, tuesday,"),
        (
            "reports: [{receivers: [a], every: month, day: 31}]",
            "the day of a month must be from 1 to 28",
        ),
        ("reports: [{receivers: [a], only: {colour: red}}]", "'colour' must be one of username,"),
        ("digests: [{receivers: [a], at: '08:00', top: 0}]", "must be a whole number from 1 to 20"),
        ("silence: 1", "unknown key 'silence'; known: receivers, timezone, link, routes"),
    ],
)
def test_a_mistake_elsewhere_has_its_place(text, problem) -> None:
    with pytest.raises(RuleFileError) as error:
        parse(f"receivers: [{{name: a, stdout: true}}]\n{text}", "n.yaml", {})
    assert problem in str(error.value)


def test_an_owner_in_an_address_needs_owners() -> None:
    with pytest.raises(RuleFileError, match="`owners` is missing"):
        parse("receivers: [{name: a, apprise: 'json://h/{owner}'}]", "n.yaml", {})


def test_all_problems_are_said_and_no_secret(tmp_path) -> None:
    text = (
        "receivers:\n  - {name: a, apprise: 'slakc://tok4711'}\n  - {name: b, webhook: 'tok4711'}"
    )
    (tmp_path / "n.yaml").write_text(text)
    with pytest.raises(RuleFileError) as error:
        load(tmp_path / "n.yaml")
    assert len(error.value.problems) == 2
    assert "tok4711" not in str(error.value)
    with pytest.raises(RuleFileError, match="none.yaml:1:1: cannot be read: No such file"):
        load(Path("/none.yaml"))


PIECES = st.sampled_from(
    ["receivers:", "- ", "  ", "\n", "name: a", "stdout: true", "routes:", "match:", "{", "}", "[", "]",
     ",", "${X}", "digests:", "at: 08:00", "owners:", "1", "null", "&a ", "*a ", "<<: ", "!!int "]
)  # fmt: skip


@given(st.lists(PIECES, max_size=25).map("".join))
def test_rubbish_is_a_problem_with_a_place_or_a_file(text) -> None:
    try:
        parse(text, "n.yaml", {})
    except RuleFileError as error:
        assert all(problem.line >= 1 and problem.column >= 1 for problem in error.problems)
