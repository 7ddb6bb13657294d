"""Policies by the command: slips in a line each, and what would have been done in sentences."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.rules.policies.test_dry_run import HOUR, NOW, UNTIL, alert, policy

from gpuwarden_cli.commands.policies import report
from gpuwarden_cli.main import main
from gpuwarden_rules.policies.dry_run import ActFacts, DryRun, judged, tried
from gpuwarden_rules.policies.language import PolicySubject

CULL = "policies:\n  - {name: cull, rule: gpu_idle_held, after: 30m, steps: [{do: ask_owner, wait: 4h}, {do: cancel_job}]}\n"


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (CULL.replace("idle_held", "idel"), (), ":2:24: no rule is called 'gpu_idel'; `gpuwarden rules list` has them"),
        (CULL, ("--policy", "drain"), "no policy of these files is called 'drain'"),
        (CULL, ("--since", "soon"), "--since soon is not a duration; write 6h or 7d"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, capsys, text, flags, said) -> None:
    (tmp_path / "p.yaml").write_text(text)
    assert main(["policies", "backtest", str(tmp_path / "p.yaml"), *flags]) == 2
    assert capsys.readouterr().err.removesuffix("\n").endswith(said)


CASES = """
cases:
  - name: a job that stays idle is ended after the wait
    policy: cull
    alerts:
      - {username: ada, job: "7", fires: 9h, lasts: 6h, expect: acted, act: 810m}
      - {username: bob, job: "8", fires: 9h, lasts: 2h, expect: spared}
      - {username: bob, job: "9", fires: 9h, lasts: 20m, expect: ended}
      - {username: eve, job: "7", fires: 9h, expect: with_others}
"""


def test_cases_of_policies_are_run_and_what_differs_is_said(tmp_path: Path, capsys) -> None:
    (tmp_path / "p.yaml").write_text(CULL)
    tests = tmp_path / "p.test.yaml"
    tests.write_text(CASES)
    assert main(["policies", "test", str(tmp_path / "p.yaml")]) == 0
    assert capsys.readouterr().out.endswith("1 passed, 0 failed\n")
    tests.write_text(CASES.replace("810m", "14h").replace("spared", "acted"))
    assert main(["policies", "test", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert (
        f"FAIL p.test.yaml: a job that stays idle is ended after the wait\n     at {tests}:3\n"
        in out
    )
    assert "line 6: expected the act at 14 h 00 min, and it is at 13 h 30 min\n" in out
    assert "line 7: expected acted, and it is spared\n" in out
    # A file of cases is not read as policies.
    assert main(["policies", "check", str(tmp_path)]) == 0


def test_wrong_acts_are_named_and_not_counted_as_saved() -> None:
    of = policy()
    alerts = [alert(0 * HOUR, 4 * HOUR, gpu) for gpu in range(3)]
    alerts.append(alert(46 * HOUR + 30 * timedelta(minutes=1), None, 3))
    subjects = [PolicySubject(username="ada", job="7"), PolicySubject(username="ada", job="7"), PolicySubject(username="bob", job="8"), PolicySubject()]  # fmt: skip
    facts = [ActFacts("7"), ActFacts("7"), ActFacts("8", NOW + 80 * timedelta(minutes=1)), ActFacts()]  # fmt: skip
    found = judged(of, tried(of, alerts, subjects, UNTIL), facts, UNTIL)
    run = DryRun(of, NOW, UNTIL, tuple(found))
    text = report(run, lists_acts=False)
    assert text.startswith(
        "cull would have done cancel_job 3 times in 2 d 0 h, and saved $13.00.\n"
        "1 alert of 3 wrongly: the job was busy again within an hour.\n"
        "1 alert of the last hour cannot be judged yet.\n"
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["ada", "2", "1", "$12.00", "–"] in rows
    assert ["bob", "1", "1", "–", "1"] in rows
    assert ["not", "known", "1", "0", "$1.00", "–"] in rows
    assert [row for row in rows if row[-2:] == ["$6.00", "13:20"]], "the wrong act is listed"
    assert len(report(run, lists_acts=True).splitlines()) == len(text.splitlines()) + 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("policy: cull", "policy: kill", ":4:13: no policy is called 'kill'"),
        ("expect: acted", "expect: act", ":6:65: 'act' must be one of protected, ended, spared"),
        ("fires: 9h, lasts: 6h", "fires: soon, lasts: 6h", ":6:42: 'soon' must be a duration such as 30m or 9h"),
        ("fires: 9h, lasts: 20m, ", "", ":8:9: key 'fires' is missing"),
    ],
)  # fmt: skip
def test_slips_in_cases_are_said_with_their_place(tmp_path: Path, capsys, old, new, said) -> None:
    (tmp_path / "p.yaml").write_text(CULL)
    (tmp_path / "p.test.yaml").write_text(CASES.replace(old, new))
    assert main(["policies", "test", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
