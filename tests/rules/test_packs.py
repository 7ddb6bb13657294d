"""The built-in rules: every case of every `*.test.yaml` beside them, and what all must have."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.each import each
from tests.rules.built_in import FILES, cases_in

from gpuwarden.alert import AlertState
from gpuwarden.diagnosis import INPUT_BOUND, Bottleneck
from gpuwarden.sxids import SXID_ACTIONS, SXIDS
from gpuwarden_agent.events.kinds import KINDS
from gpuwarden_agent.events.xid_lines import Sxid
from gpuwarden_agent.events.xid_rows import row_of
from gpuwarden_collector.ingest import clock_check, gpu_owners, node_owners
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.testing import Case, run_case
from gpuwarden_rules.testing.cases import START
from gpuwarden_rules.testing.runner import alerts_in


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_case_of_a_pack_passes(path: Path) -> None:
    failed = {case.name: run_case(case).failures for case in cases_in(path)}
    assert not {name: "\n".join(said) for name, said in failed.items() if said}


def test_every_rule_has_a_firing_and_a_quiet_case() -> None:
    firing, quiet = set(), set()
    for case in (case for path in FILES for case in cases_in(path)):
        for expectation in case.expectations:
            (firing if expectation.alerts else quiet).add(expectation.rule)
    names = {rule.name for rule in builtin_rules()}
    assert firing == names
    assert quiet == names


@each("rule", builtin_rules())
def test_a_rule_says_nothing_over_empty_tables(rule, database, clock) -> None:
    assert database.run(rule.sql, rule.bindings(clock.now())).rows == []


def test_the_data_loader_rule_speaks_of_all_classes_that_wait_for_data() -> None:
    (rule,) = [rule for rule in builtin_rules() if rule.name == "gpu_data_loader_bound"]
    named = set(re.findall(r"'([a-z_]+)'", rule.sql)) & {b.value for b in Bottleneck}
    assert named == {b.value for b in INPUT_BOUND} | {Bottleneck.UNKNOWN.value}


def test_rules_wait_for_kinds_of_events_that_there_are() -> None:
    known = {*KINDS, node_owners.CLAIMED_TWICE, gpu_owners.CLAIMED_TWICE, clock_check.CLOCK_APART}
    waiting = [rule for rule in builtin_rules() if rule.on_events]
    assert {"xid_critical", "sxid_fatal"} <= {rule.name for rule in waiting}
    for rule in waiting:
        assert {*rule.on_events} <= known, rule.name
        read = {*re.findall(r"\w+", f"{rule.sql} {[*rule.params.values()]}")}
        assert {*rule.on_events} <= read, rule.name


def test_a_fatal_sxid_has_the_remedy_that_its_event_tells(database, clock) -> None:
    (rule,) = [rule for rule in builtin_rules() if rule.name == "sxid_fatal"]
    of_actions = {info.action: info for info in SXIDS.values()}
    assert set(of_actions) == {*SXID_ACTIONS, None}
    for info in of_actions.values():
        event = row_of(Sxid(info.code, "0000:c1:00.0", "text", is_fatal=True), {}, 7)
        database.insert("events", [{"ts": clock.now(), "node": "n1", "simulated": False, **event}])
    rows = database.run(rule.sql, rule.bindings(clock.now())).records()
    told = {int(row["sxid"]): row for row in rows}
    assert set(told) == {info.code for info in of_actions.values()}
    for info in of_actions.values():
        remedy = info.remedy(is_fatal=True)
        assert told[info.code]["advice"] == f"{remedy[0].upper()}{remedy[1:]}.", info.action
        assert told[info.code]["message"].endswith(f"; {remedy}"), info.action


def _held(case: Case, table: str, at_s: float) -> dict[str, list[tuple[Any, Any]]]:
    """User and job of the rows of the last two minutes, by GPU."""
    held: dict[str, list[tuple[Any, Any]]] = {}
    at = START + timedelta(seconds=at_s)
    for row in case.rows.get(table, ()):
        if at - timedelta(minutes=2) < row["ts"] <= at:
            held.setdefault(row["gpu_uuid"], []).append((row.get("username"), row.get("job")))
    return held


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_alert_of_a_gpu_names_the_user_and_the_job_that_suffer(path: Path) -> None:
    """In every case where the GPU has a process of a user; a sentence that names a person gives the owner."""
    unnamed, checked = [], 0
    for case in cases_in(path):
        users = {row.get("username") for rows in case.rows.values() for row in rows} - {None}
        for name in dict.fromkeys(one.rule for one in case.expectations if one.alerts):
            for at_s, alerts in alerts_in(case, name).items():
                for alert in (one for one in alerts if one.state is AlertState.FIRING):
                    spoken = {user for user in users if re.search(rf"\b{user}'s\b", alert.summary)}
                    holders = _held(case, "process_samples", at_s).get(
                        alert.labels.get("gpu_uuid", "")
                    )
                    jobs = {job for _, job in holders or () if job}
                    owners = {user for user, _ in holders or () if user}
                    checked += bool(spoken or owners)
                    if (
                        (spoken and alert.owner not in spoken)
                        or (owners and alert.owner not in owners)
                        or (jobs and alert.job not in jobs)
                    ):
                        unnamed.append(
                            (case.name, name, at_s, dict(alert.labels), alert.owner, alert.job)
                        )
    assert not unnamed, unnamed
    assert checked or path.name not in ("jobs.test.yaml", "idle.test.yaml", "data_loader.test.yaml")
