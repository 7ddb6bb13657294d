"""Checks and tests policies, says what they would have done, lists and stops them: `gpuwarden policies`."""

import argparse
import asyncio
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwarden.clock import iso_text
from gpuwarden.durations import readable, span_of
from gpuwarden.query import QueryError, first_paragraph
from gpuwarden_cli.output import counted, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group, add_since, add_url
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_cli.read.replays import Replayed, replay_all, rules_of_collector
from gpuwarden_client.http import CallError, call

if TYPE_CHECKING:
    from gpuwarden_rules.definition.overrides import Locations
    from gpuwarden_rules.definition.rule_set import RuleSet
    from gpuwarden_rules.policies.dry_run import DryRun, PolicyTrial
    from gpuwarden_rules.policies.language import Policy


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "policies", "check policies, try them on history, and stop them")
    parser = add_command(group, "check", policies_check, "check policy files")
    _add_files(parser)
    add_format(parser)
    parser = add_command(
        group, "test", policies_test, "run the cases of policies, in *.test.yaml beside them"
    )
    _add_files(parser)
    parser = add_command(
        group, "backtest", policies_backtest, "show what policies would have done, saved, and done wrong",
        "Nothing is done and nobody is asked: the steps are followed over a replay of the rule.",
    )  # fmt: skip
    _add_files(parser)
    parser.add_argument("--policy", action="append", metavar="NAME", help="this policy only; may be repeated")  # fmt: skip
    add_since(parser, "30d")
    parser.add_argument(
        "--format", choices=("table", "json"), default="table",
        help="table, or json: a line for each alert (default table)",
    )  # fmt: skip
    parser.add_argument("--acts", action="store_true", help="also list every act")
    parser.add_argument(
        "--i-know", action="store_true", help="let policies be on without a dry run"
    )
    add_url(parser)

    parser = add_command(
        group, "stop", _stop, "let no policy say or do anything, until `gpuwarden policies start`"
    )
    add_url(parser)
    parser = add_command(group, "start", _start, "end `gpuwarden policies stop`")
    add_url(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="policies: YAML, or a folder of it")  # fmt: skip
    parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help="TOML file of the collector, for its own rules and overrides",
    )  # fmt: skip


def policies_check(args: argparse.Namespace) -> int:
    """List the policies of files. Raises RuleFileError and StartError."""
    columns = ["policy", "state", "rule", "after", "steps", "file"]
    rows = [
        [
            policy.name,
            policy.state.value,
            policy.rule,
            readable(policy.after_s),
            ", ".join(_step_text(policy, number) for number in range(len(policy.steps))),
            f"{policy.path}:{policy.line}",
        ]
        for policy in _policies(args, rules_of_collector(args))
    ]
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 0


def policies_test(args: argparse.Namespace) -> int:
    """Run the cases of `*.test.yaml` files; 1 when a case fails. Raises RuleFileError and StartError."""
    from gpuwarden_rules.definition.yaml_positions import TEST_SUFFIX, yaml_files
    from gpuwarden_rules.policies.policy_tests import check_file

    policies = _policies(args, rules_of_collector(args))
    beside = [path.with_suffix(TEST_SUFFIX) for path in args.files if not path.is_dir()]
    found = dict.fromkeys(yaml_files([*args.files, *beside], tests=True))
    tests = [path for path in found if path.exists()]
    if not tests:
        raise CallError(f"{args.files[0]} has no *.test.yaml file beside it")
    results = [result for path in tests for result in check_file(path, policies)]
    failed = [result for result in results if result.difference]
    for result in results:
        print(f"{'FAIL' if result.difference else 'ok  '} {Path(result.path).name}: {result.name}")
        if result.difference:
            print(textwrap.indent(f"at {result.path}:{result.line}\n{result.difference}", "     "))
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def policies_backtest(args: argparse.Namespace) -> int:
    """Print what policies would have done. Raises RuleFileError, StartError and CallError."""
    from gpuwarden_rules.policies.language import PolicyState

    span = span_of(args.since, "--since")
    rule_set = rules_of_collector(args)
    policies = _policies(args, rule_set)
    unknown = sorted(set(args.policy or ()) - {policy.name for policy in policies})
    if unknown:
        raise ValueError(f"no policy of these files is called {unknown[0]!r}")
    wanted = [p for p in policies if not args.policy or p.name in args.policy]
    for policy in wanted:
        if policy.state is PolicyState.OFF:
            print(f"gpuwarden: {policy.name} is off", file=sys.stderr)
    tried = [policy for policy in wanted if policy.state is not PolicyState.OFF]
    if not tried:
        return 0
    if args.i_know:
        _see(tried, args.url)
        return 0
    names = {policy.rule for policy in tried}
    rule_set = replace(rule_set, rules=tuple(r for r in rule_set.rules if r.name in names))
    done: dict[str, Replayed] = {}

    async def run() -> "list[DryRun | str]":
        from gpuwarden_rules.evaluation.fleet import locations
        from gpuwarden_rules.policies.dry_run import dry_run

        await replay_all(
            rule_set, span, None, args.url, lambda name, one, _: done.update({name: one})
        )
        querier = RemoteQuerier(args.url)
        places: Locations | None = None
        found: list[DryRun | str] = []
        for policy in tried if done else ():
            one = done[policy.rule]
            if isinstance(one, Exception | str):
                found.append(
                    f"{policy.name}: {policy.rule} cannot be replayed: {first_paragraph(one)}"
                )
                continue
            try:
                places = places or await locations(querier)
                found.append(await dry_run(policy, one, places, querier))
            except QueryError as error:
                found.append(f"{policy.name}: {first_paragraph(error)}")
        return found

    results = asyncio.run(run())
    for one in results:
        if isinstance(one, str):
            print(f"gpuwarden: {one}", file=sys.stderr)
        elif args.format == "json":
            _print_lines(one)
        else:
            print(report(one, lists_acts=args.acts))
    _see([one.policy for one in results if not isinstance(one, str)], args.url)
    return 1 if any(isinstance(one, str) for one in results) else 0


def _see(policies: "Sequence[Policy]", url: str | None) -> None:
    """Note at the collector that the dry runs of its policies that are on were read."""
    from gpuwarden_rules.policies.cases import digest_of
    from gpuwarden_rules.policies.language import PolicyState

    for policy in policies:
        if policy.state is not PolicyState.ON:
            continue
        try:
            call("POST", f"/v1/policies/{policy.name}/seen", {"digest": digest_of(policy)}, url=url)
        except CallError as error:
            print(f"gpuwarden: {policy.name} is not on: {error}", file=sys.stderr)


def _stop(args: argparse.Namespace) -> int:
    call("POST", "/v1/policies/stop", {}, url=args.url)
    print("policies are stopped: nothing is said or done until `gpuwarden policies start`")
    return 0


def _start(args: argparse.Namespace) -> int:
    call("POST", "/v1/policies/start", {}, url=args.url)
    print("policies are started")
    return 0


def _policies(args: argparse.Namespace, rule_set: "RuleSet") -> "list[Policy]":
    """The policies of `files`, checked against these rules."""
    from gpuwarden_rules.definition.yaml_positions import yaml_files
    from gpuwarden_rules.policies.language import load_policies

    paths = yaml_files(args.files, tests=False)
    if not paths:
        raise CallError(f"{args.files[0]} has no *.yaml file")
    return load_policies(paths, [rule.name for rule in rule_set.rules])


def _step_text(policy: "Policy", number: int) -> str:
    step = policy.steps[number]
    return step.kind.value + (f", wait {readable(step.wait_s)}" if step.wait_s else "")


def _print_lines(one: "DryRun") -> None:
    """Print each alert as a line of JSON."""
    for trial in one.trials:
        print(json.dumps(_record(one, trial), ensure_ascii=False, default=iso_text), flush=True)


def _record(one: "DryRun", trial: "PolicyTrial") -> Mapping[str, Any]:
    alert = trial.alert
    return {
        "policy": one.policy.name, "rule": alert.rule, "outcome": trial.outcome.value, "labels": dict(alert.labels),
        "username": trial.subject.username or None, "job": trial.subject.job or None, "fired_at": alert.fired_at,
        "resolved_at": alert.resolved_at, "first_at": trial.first_at, "act_at": trial.act_at, "saved_usd": trial.saved_usd,
        "busy_again_at": trial.busy_again_at, "is_judged": trial.is_judged, "simulated": alert.simulated,
    }  # fmt: skip


def report(one: "DryRun", *, lists_acts: bool) -> str:
    """What a policy would have done, as text."""
    from gpuwarden_rules.definition.templates import usd
    from gpuwarden_rules.policies.dry_run import Outcome
    from gpuwarden_rules.policies.language import ON_NODES

    policy = one.policy
    acts = [trial for trial in one.trials if trial.act_at is not None]
    own = one.of(Outcome.ACTED)
    saved = "" if one.saved_usd is None else f", and saved {usd(one.saved_usd)}"
    head = (
        f"{policy.name} would have done {policy.act.value} {_times(len(own))} in"
        f" {readable((one.until - one.since).total_seconds())}{saved}."
    )
    judged = [trial for trial in acts if trial.is_judged or trial.is_wrong]
    young = 0 if policy.act in ON_NODES else len(acts) - len(judged)
    lines = [head]
    if judged:
        lines.append(
            f"{counted(len(one.wrong), 'alert')} of {len(judged):,} wrongly: the job was busy again within an hour."
        )
    if young:
        lines.append(f"{counted(young, 'alert')} of the last hour cannot be judged yet.")
    lines.append("")
    counts = [[o.value, len(found)] for o in Outcome if (found := one.of(o))]
    if not counts:
        return f"{head} {policy.rule} did not fire for what it matches.\n"
    width = terminal_width()
    lines.append(render(["outcome", "alerts"], counts, "table", width=width))
    if acts:
        rows = [_of_user(username, several) for username, several in one.by_user().items()]
        columns = ["username", "alerts", "jobs", "saved", "wrongly"]
        lines.append(render(columns, rows, "table", width=width))
    if one.wrong or (lists_acts and acts):
        columns = ["at", "where", "username", "job", "saved", "busy again"]
        listed = [_line(trial) for trial in acts if lists_acts or trial.is_wrong]
        lines.append(render(columns, listed, "table", width=width))
    if any(trial.alert.simulated for trial in acts):
        lines.append("Some GPUs are simulated.\n")
    return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else "never" if not count else f"{count:,} times"


def _of_user(username: str, trials: "Sequence[PolicyTrial]") -> list[Any]:
    from gpuwarden_rules.definition.templates import usd
    from gpuwarden_rules.policies.dry_run import saved_usd

    saved = saved_usd(trials)
    jobs = {trial.subject.job for trial in trials} - {""}
    wrongly = sum(trial.is_wrong for trial in trials)
    return [
        username or "not known",
        len(trials),
        len(jobs),
        None if saved is None else usd(saved),
        wrongly or None,
    ]


def _line(trial: "PolicyTrial") -> list[Any]:
    from gpuwarden_rules.definition.templates import usd

    labels = trial.alert.labels
    again = trial.busy_again_at
    return [
        f"{trial.act_at:%Y-%m-%d %H:%M}",
        ", ".join(f"{k} {v}" for k, v in labels.items() if k != "gpu_uuid"),
        trial.subject.username,
        trial.subject.job,
        None if trial.saved_usd is None else usd(trial.saved_usd),
        None if again is None else f"{again:%H:%M}",
    ]
