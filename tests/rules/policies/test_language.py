"""Policy files: what they mean, and every slip in them named by its place."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden_rules.definition.yaml_positions import RuleFileError
from gpuwarden_rules.policies.language import (
    Day,
    Policy,
    PolicyState,
    PolicyStep,
    PolicySubject,
    StepKind,
    load_policies,
    parse_policies,
)

RULES = ("gpu_idle_held", "xid_critical")
DOCS = Path(__file__).parents[3] / "docs" / "policies.md"


def policy_of(more: str = "", steps: str = "[{do: cancel_job}]") -> Policy:
    text = f"policies:\n  - {{name: cull, rule: gpu_idle_held, steps: {steps}{more}}}"
    (policy,) = parse_policies(text, "p.yaml", RULES)
    return policy


def problems(text: str) -> list[str]:
    with pytest.raises(RuleFileError) as refused:
        parse_policies(text, "p.yaml", RULES)
    return [str(one) for one in refused.value.problems]


def test_the_policy_of_the_page_is_read() -> None:
    text = DOCS.read_text()
    example = text[text.index("```yaml\n") + 8 :]
    (policy,) = parse_policies(example[: example.index("```")], "p.yaml", RULES)
    assert (policy.name, policy.state, policy.rule) == (
        "cull_idle",
        PolicyState.DRY_RUN,
        "gpu_idle_held",
    )
    assert policy.steps == (
        PolicyStep(StepKind.ASK_OWNER, 4 * 3600), PolicyStep(StepKind.WARN_OWNER, 1800), PolicyStep(StepKind.CANCEL_JOB, 0),
    )  # fmt: skip
    assert (policy.after_s, policy.an_hour, policy.at_once) == (1800, 10, 50)
    assert policy.is_protected(PolicySubject(username="ada")) and policy.is_protected(
        PolicySubject(job="prod-7")
    )
    assert not policy.is_protected(PolicySubject(username="bob", job="7"))
    for step in StepKind:
        assert f"`{step.value}`" in text


@each(
    ("line", "said"),
    [
        ("{name: a, rule: gpu_idle_held, undo: {after: 2h}, steps: [{do: cancel_job}]}", "cancel_job cannot be undone: only acts on nodes can"),
        ("{name: Cull, rule: gpu_idle_held, steps: [{do: cancel_job}]}", "2:12: 'Cull' must be lower-case words joined by _"),
        ("{name: a, rule: gpu_idel, steps: [{do: cancel_job}]}", "2:21: no rule is called 'gpu_idel'"),
        ("{name: a, rule: gpu_idle_held, state: maybe, steps: [{do: cancel_job}]}", "off, dry-run, on"),
        ("{name: a, rule: gpu_idle_held, steps: [{do: resume_node}]}", "a policy returns no node"),
        ("{name: a, rule: gpu_idle_held, steps: []}", "must have at least one step"),
        ("{name: a, rule: gpu_idle_held, steps: [{do: reboot}]}", "do 'reboot' must be one of tell_owner"),
        ("{name: a, rule: gpu_idle_held, steps: [{do: ask_owner, wait: 1h}]}", "the last step must act"),
        ("{name: a, rule: gpu_idle_held, steps: [{do: drain_node}, {do: cancel_job}]}", "drain_node acts: only the last step may"),
        ("{name: a, rule: gpu_idle_held, steps: [{do: cancel_job, wait: 1h}]}", "nothing waits after the last step"),
        ("{name: a, rule: gpu_idle_held, steps: [{do: ask_owner, wait: soon}, {do: cancel_job}]}", "'soon' must be a duration up to 14d"),
        ("{name: a, rule: gpu_idle_held, limits: {an_hour: 0}, steps: [{do: cancel_job}]}", "must be a whole number from 1"),
        ("{name: a, rule: gpu_idle_held, match: {}, steps: [{do: cancel_job}]}", "must name at least one of node"),
        ("{name: a, rule: gpu_idle_held, hours: {days: [mon], from: '11:00', until: '10:00'}, steps: [{do: cancel_job}]}", "must be later than from"),
        ("{name: a, rule: gpu_idle_held, hours: {days: [mo], from: '09:00', until: '10:00'}, steps: [{do: cancel_job}]}", "day 'mo' must be one of"),
        ("{name: a, rule: gpu_idle_held, hours: {days: [mon], from: '09:00', until: '10:00', zone: Mars/Base}, steps: [{do: cancel_job}]}", "no time zone is called 'Mars/Base'"),
        ("{name: a, rule: gpu_idle_held, steps: [" + ", ".join(["{do: tell_owner}"] * 8) + ", {do: cancel_job}]}", "more than 8 steps"),
    ],
)  # fmt: skip
def test_every_slip_is_named_by_its_place(line: str, said: str) -> None:
    found = problems(f"policies:\n  - {line}")
    assert [one for one in found if said in one], found
    assert all(one.startswith("p.yaml:2:") for one in found)


@given(st.text(max_size=200))
def test_rubbish_is_refused_in_lines(text: str) -> None:
    try:
        assert parse_policies(text, "p.yaml", RULES) == []
    except RuleFileError as error:
        assert all(str(one).startswith("p.yaml:") for one in error.problems)


def test_a_name_is_there_once_in_all_files(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(
            "policies:\n  - {name: cull, rule: gpu_idle_held, steps: [{do: cancel_job}]}\n"
        )
    with pytest.raises(RuleFileError) as refused:
        load_policies(sorted(tmp_path.iterdir()), RULES)
    assert str(refused.value) == f"{tmp_path}/b.yaml:2:1: 'cull' is also in {tmp_path}/a.yaml:2"


def test_what_is_not_known_fits_no_pattern() -> None:
    subject = PolicySubject(
        node="dgx-1", model="H100-SXM-80GB", username="ada", labels={"team": "vision"}
    )
    assert subject.fits({})
    assert subject.fits({"node": "dgx-?", "team": "vision", "username": "a*", "model": "H100*"})
    assert not subject.fits({"job": "*"})
    assert not subject.fits({"rack": "*"})
    assert not subject.fits({"node": "dgx-1", "team": "speech"})


YEAR = datetime(2026, 1, 1)  # noqa: DTZ001  # hypothesis takes naive limits
HOURS = policy_of(
    ", hours: {days: [mon, fri], from: '08:00', until: '18:00', zone: Europe/Berlin}"
).hours


def test_the_next_instant_within_hours_follows_the_zone_and_its_change_of_clocks() -> None:
    assert HOURS is not None and HOURS.days == {Day.MON, Day.FRI}
    friday = datetime(2026, 3, 27, 9, tzinfo=UTC)
    assert HOURS.next_at(friday) == friday
    # 18:00 of Friday is out; Monday is in summer time, two hours from UTC.
    assert HOURS.next_at(friday.replace(hour=17)) == datetime(2026, 3, 30, 6, tzinfo=UTC)
    assert HOURS.next_at(friday.replace(hour=1)) == friday.replace(hour=7)


@given(st.datetimes(YEAR, YEAR + timedelta(days=365)))
def test_hours_only_ever_move_later_and_into_them(naive: datetime) -> None:
    assert HOURS is not None
    at = naive.replace(tzinfo=UTC)
    found = HOURS.next_at(at)
    local = found.astimezone(HOURS.zone)
    assert at <= found <= at + timedelta(days=7)
    assert local.weekday() in (0, 4) and 8 <= local.hour < 18
    assert HOURS.next_at(found) == found
