"""Measures by mutation testing what the tests of the pure cores notice: `make mutants`.

    python -m bench.mutants [MODULE ...] [--survivors] [--tenths 10] [--patience 5] [--workers N] [--folder .mutants]

mutmut changes one expression at a time of a module and runs the module's own tests; a mutant that they all pass
has survived. It takes a module's name from its path, so each module is measured in a folder of its own that has the
part's package, the tests and the docs side by side. Tests marked slow do not run. Functions with a decorator, `len()`,
texts of errors and log lines are not mutated. A survivor that changes only the letter case of SQL is not counted. A
mutant that takes `--patience` times as long as its tests counts as noticed: on a busy machine many do, and the column
`timeouts` shows it. A survivor may be equivalent to the original: the score is not an aim by itself. `--tenths 2` tries
a fifth of the mutants, by the last digit of their numbers.
"""

import argparse
import ast
import difflib
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomlkit

ROOT = Path(__file__).parents[1]
MUTMUT = Path(sys.executable).parent / "mutmut"

# Exit codes of pytest and of mutmut's runner; all others killed the mutant.
_SURVIVED = (0, 5, 33)
_TIMED_OUT = (24, -24, 36, 152, -9)

_CONFTEST = """
import pytest
from hypothesis import Phase, settings
from mutmut.state import state

settings.register_profile(
    "mutants", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate]
)

_ran = set()


# mutmut tries a mutant with the tests in which its function ran. What ran at import, in a fixture of a module or
# behind a cache ran once and decides later tests as well.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown():
    _ran.update(state()._stats)
    state()._stats.update(_ran)
"""


@dataclass(frozen=True)
class Core:
    """A module to mutate and the tests that must notice; `functions` are patterns, none: all."""

    module: str
    tests: tuple[str, ...]
    functions: tuple[str, ...] = ()
    runs_at_import: bool = False
    """Its functions make tables when it is imported: each mutant needs a process that has not imported it."""


def _core(module: str, tests: str, functions: str = "", *, runs_at_import: bool = False) -> Core:
    return Core(module, tuple(tests.split()), tuple(functions.split()), runs_at_import)


_RULES, _COLLECTOR, _AGENT = "gpuwarden_rules", "gpuwarden_collector", "gpuwarden_agent"
CORES = (
    _core(f"{_RULES}.evaluation.state", "tests/rules/evaluation/test_state.py"),
    _core(f"{_RULES}.incidents.state", "tests/rules/incidents/test_state.py"),
    _core(f"{_RULES}.notify.planner", "tests/rules/notify/test_planner.py"),
    _core(f"{_RULES}.notify.digest", "tests/rules/notify/test_digest.py"),
    _core(f"{_RULES}.definition.templates", "tests/rules/definition/test_templates.py"),
    _core(
        f"{_RULES}.policies.dry_run",
        "tests/rules/policies/test_dry_run.py",
        "tried _waited _with_others _is_* _free_at _target _judged judged *Firing*count",
    ),
    _core(f"{_RULES}.policies.cases", "tests/rules/policies/test_cases.py"),
    _core(
        f"{_RULES}.policies.results",
        "tests/rules/policies/test_results.py",
        "to_judge _was_done _begin _known_until",
    ),
    _core(
        f"{_RULES}.notify.handover",
        "tests/rules/notify/test_handover.py",
        "claims turned answered published taken",
    ),
    _core(f"{_RULES}.notify.silence_share", "tests/rules/notify/test_silence_share.py"),
    _core(f"{_RULES}.policies.language", "tests/rules/policies/test_language.py"),
    _core(
        f"{_COLLECTOR}.ingest.deduplicate",
        "tests/collector/test_doubt.py tests/collector/ingest/test_deduplicate.py tests/collector/ingest/test_senders.py",
    ),
    _core(
        f"{_COLLECTOR}.ingest.admit",
        "tests/collector/ingest/test_admit.py tests/collector/ingest/test_wire_format.py",
    ),
    _core(
        f"{_COLLECTOR}.ingest.commit_plan",
        "tests/collector/ingest/test_commit_plan.py tests/collector/ingest/test_gpu_owners.py"
        " tests/collector/ingest/test_node_owners.py tests/collector/ingest/test_departures.py"
        " tests/collector/ingest/test_xid_gpus.py tests/collector/ingest/test_senders.py"
        " tests/collector/ingest/test_replaced_boards.py",
    ),
    _core(f"{_COLLECTOR}.storage.retention", "tests/collector/storage/test_retention.py"),
    _core(f"{_COLLECTOR}.storage.seal", "tests/collector/storage/test_sealing.py", "next_step"),
    _core(
        f"{_COLLECTOR}.storage.rollup_schedule",
        "tests/collector/storage/test_rolling.py",
        "next_step next_late_count",
    ),
    _core(
        f"{_COLLECTOR}.storage.maintenance",
        "tests/collector/storage/test_maintenance.py",
        "next_task key_of _due",
    ),
    _core(
        f"{_COLLECTOR}.query.guard",
        "tests/collector/query/test_guard.py tests/collector/query/test_allowed_names.py"
        " tests/collector/ops/test_query_log.py",
    ),
    _core(
        f"{_COLLECTOR}.query.fair_queue",
        "tests/collector/query/test_fair_queue.py tests/collector/query/test_ranks.py",
    ),
    _core("gpuwarden.wire", "tests/contract/test_wire.py"),
    _core("gpuwarden.gpu_test", "tests/contract/test_gpu_test.py"),
    _core("gpuwarden_cli.gpu_test.readings", "tests/cli/gpu_test/test_readings.py"),
    _core(
        "gpuwarden_cli.gpu_test.kernels",
        "tests/cli/gpu_test/test_kernels.py",
        "memory matmul copies peers _rate _median one",
    ),
    _core("gpuwarden.waste", "tests/contract/test_waste.py", runs_at_import=True),
    _core("gpuwarden.rollups", "tests/contract/test_rollups.py", runs_at_import=True),
    _core(
        "gpuwarden.xids",
        "tests/contract/test_xids.py tests/contract/test_nvlink5.py",
        runs_at_import=True,
    ),
    _core(
        f"{_AGENT}.ship.shipper",
        "tests/agent/ship/test_shipper.py tests/agent/ship/test_several_collectors.py",
        "next_action _backoff_s _asked_s may_be_stored _is_about_the_batch _reason",
    ),
    _core(f"{_AGENT}.queue.spool", "tests/agent/queue/test_spool.py"),
    _core(
        f"{_AGENT}.events.xid_lines",
        "tests/agent/events/test_xid_lines.py tests/agent/events/test_xid_rows.py",
    ),
    _core(f"{_AGENT}.sampling.schedule", "tests/agent/sampling/test_schedule.py"),
)


@dataclass(frozen=True)
class Survivor:
    """A mutant that passed all tests."""

    name: str
    line: int
    diff: str


@dataclass(frozen=True)
class Result:
    """The results of the mutants of one module."""

    module: str
    killed: int
    timeouts: int
    survivors: tuple[Survivor, ...]
    took_s: float

    @property
    def mutants(self) -> int:
        return self.killed + self.timeouts + len(self.survivors)

    @property
    def score_percent(self) -> float:
        """A mutant that never ends is noticed too."""
        return 100 * (self.killed + self.timeouts) / max(self.mutants, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """1: the tests of a module could not be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("modules", nargs="*", help="modules to mutate; none: all")
    parser.add_argument("--survivors", action="store_true", help="print each survivor's change")
    parser.add_argument("--tenths", type=int, default=10, help="tenths of the mutants to try")
    parser.add_argument("--patience", type=float, default=5.0, help="times the tests' own duration")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=Path(".mutants"))
    args = parser.parse_args(argv)
    known = {core.module: core for core in CORES}
    if unknown := [name for name in args.modules if name not in known]:
        parser.error(f"no tests are named for {unknown[0]}; choose from {', '.join(known)}")
    print(
        f"{'module':<40}{'mutants':>8}{'killed':>8}{'survived':>9}{'timeouts':>9}{'score':>7}{'s':>6}"
    )
    failed = 0
    for core in [known[name] for name in args.modules] or CORES:
        try:
            result = measure(
                core,
                args.folder / core.module,
                workers=args.workers,
                tenths=args.tenths,
                patience=args.patience,
            )
        except MutantsError as error:
            failed += 1
            print(f"{core.module:<40}  {error}", flush=True)
            continue
        print(
            f"{result.module:<40}{result.mutants:>8}{result.killed:>8}{len(result.survivors):>9}"
            f"{result.timeouts:>9}{result.score_percent:>6.0f}%{result.took_s:>6.0f}",
            flush=True,
        )
        if args.survivors:
            for survivor in result.survivors:
                print(f"  line {survivor.line}, {survivor.name}\n{survivor.diff}", flush=True)
    return 1 if failed else 0


class MutantsError(Exception):
    """A module could not be measured."""


def measure(
    core: Core,
    folder: Path,
    *,
    root: Path = ROOT,
    workers: int = 1,
    tenths: int = 10,
    patience: float = 5.0,
) -> Result:
    """Mutate the module of `core` below `root` and run its tests for each mutant."""
    begin_s = time.monotonic()
    package, _, _ = core.module.partition(".")
    source = next((found.parent for found in root.glob(f"*/{package}/__init__.py")), None)
    if source is None:
        raise MutantsError(f"there is no package {package} below {root}")
    path = Path(*core.module.split(".")).with_suffix(".py")
    _prepare(folder, core, source, root, path, patience)
    wanted = _patterns(core, tenths)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment["PYTHONPATH"] = str(folder.absolute() / "mutants")
    log = folder / "log.txt"
    with log.open("w") as output:
        done = subprocess.run(
            [MUTMUT, "run", "--max-children", str(workers), *wanted],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise MutantsError(f"mutmut ended with status {done.returncode}: see {log}")
    mutated = folder / "mutants" / path
    codes = json.loads(mutated.with_name(f"{path.name}.meta").read_text())["exit_code_by_key"]
    if wanted:
        codes = {n: c for n, c in codes.items() if any(fnmatch.fnmatch(n, w) for w in wanted)}
    if open_ := [name for name, code in codes.items() if code is None]:
        raise MutantsError(f"{len(open_)} mutants were not tried: see {log}")
    survived = [name for name, code in codes.items() if code in _SURVIVED]
    timeouts = sum(code in _TIMED_OUT for code in codes.values())
    return Result(
        core.module,
        len(codes) - len(survived) - timeouts,
        timeouts,
        tuple(_survivors(survived, source / path.relative_to(package), mutated)),
        time.monotonic() - begin_s,
    )


def _patterns(core: Core, tenths: int) -> list[str]:
    """Names of the mutants to try, as mutmut gives them; none: all."""
    digits = "7301946258"[:tenths]
    if len(digits) == 10:
        return [f"{core.module}.x_{function}__mutmut_*" for function in core.functions]
    functions = [f"x_{function}" for function in core.functions] or ["x*"]
    return [
        f"{core.module}.{function}__mutmut_*{digit}" for function in functions for digit in digits
    ]


def _prepare(
    folder: Path, core: Core, source: Path, root: Path, path: Path, patience: float
) -> None:
    """Lay the package and the tests side by side, and say what to mutate."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "mutants").mkdir(
        parents=True
    )  # on the path of modules: Python caches that a folder is absent
    (folder / source.name).symlink_to(source.absolute())
    (folder / "tests").symlink_to((root / "tests").absolute())
    for read_by_tests in ("README.md", "docs"):
        (folder / "mutants" / read_by_tests).symlink_to((root / read_by_tests).absolute())
    (folder / "conftest.py").write_text(_CONFTEST)
    pytest = tomlkit.parse((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    pytest["pythonpath"] = [".", str(root), str(root / "release")]
    mutmut: Mapping[str, object] = {
        "source_paths": [source.name],
        "only_mutate": [str(path)],
        "do_not_mutate_patterns": [r"\blog\.\w+\(", r"raise \w+", r"\w+Error\("],
        "also_copy": ["conftest.py"],
        "pytest_add_cli_args": [
            "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:unraisableexception",
            "--hypothesis-profile=mutants",
        ],
        "pytest_add_cli_args_test_selection": list(core.tests),
        "process_isolation": "forkserver",
        "forkserver_warmup": "none" if core.runs_at_import else "collect",
        "track_dependencies": False,
        "use_git_change_detection": False,
        "timeout_constant": 2.0,
        "timeout_multiplier": patience,
    }  # fmt: skip
    tools = {"pytest": {"ini_options": pytest}, "mutmut": mutmut}
    (folder / "pyproject.toml").write_text(tomlkit.dumps({"tool": tools}))


def _survivors(names: Sequence[str], original: Path, mutated: Path) -> Iterator[Survivor]:
    """mutmut writes each mutant as a function beside its original: compare the two."""
    # ast.get_source_segment splits the whole text for each function: half a minute for 600 of them.
    lines_of = (text := mutated.read_text()).splitlines()
    functions = {
        node.name: "\n".join(lines_of[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    starts = _starts(original)
    for name in names:
        short = name.rpartition(".")[2]
        function, _, number = short.partition("__mutmut_")
        qualified = ".".join(function.removeprefix("x_").removeprefix("xǁ").split("ǁ"))
        before, after = (
            functions[f"{function}__mutmut_{which}"].replace(f"__mutmut_{which}(", "(", 1)
            for which in ("orig", number)
        )
        _, _, at, *lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), n=0, lineterm=""
        )
        changed = [[line[1:] for line in lines if line[0] == sign] for sign in "-+"]
        if is_same_sql(*("\n".join(texts) for texts in changed)):
            continue
        offset = int(re.split("[ ,]", at.removeprefix("@@ -"))[0]) - 1
        diff = "\n".join(f"    {line}" for line in lines if not line.startswith("@@"))
        yield Survivor(f"{qualified} {number}", starts[qualified] + offset, diff)


_SQL_WORD = re.compile(
    r"\b(SELECT|FROM|JOIN|USING|WHERE|GROUP|ORDER|WINDOW|CASE|WHEN|THEN|FILTER|AND|OR|ON|AS|IS|INSERT|DELETE"
    r"|VALUES|PRAGMA)\b"
)


def is_same_sql(before: str, after: str) -> bool:
    """Whether two lines of SQL differ only in the letter case of words outside quotes."""
    return bool(_SQL_WORD.search(before)) and _folded(before) == _folded(after)


def _folded(sql: str) -> str:
    return re.sub(
        r"'[^']*'|[^']+", lambda part: part[0] if part[0][0] == "'" else part[0].lower(), sql
    )


def _starts(path: Path) -> dict[str, int]:
    """The line of each function of a module."""
    starts = {}
    tree = ast.parse(path.read_text())
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                starts[prefix + member.name] = member.lineno
    return starts


if __name__ == "__main__":
    raise SystemExit(main())
