"""The findings as a page of Markdown."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bench.gpu import agreement

if TYPE_CHECKING:
    from bench.gpu.evidence import Evidence

SLOW_US = 5000
"""Calls slower than this do not belong into every second."""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value).replace("|", "/")


def summary(evidence: "Evidence") -> str:
    """All of it, shortest first."""
    parts = [f"# Evidence: {evidence.machine.name}"]
    if evidence.notes:
        parts.append("\n".join(f"- {note}" for note in evidence.notes))
    if evidence.overhead:
        parts += ["## The agent itself", table(("what", "value"), evidence.overhead.items())]
    if evidence.tensor:
        parts += ["## GPM against a known matrix product", table(("what", "value"), evidence.tensor.items())]  # fmt: skip
    parts += ["## Workloads", *_scenes(evidence)]
    parts += ["## Agreement with nvidia-smi", *_agreement(evidence)]
    parts += ["## What the driver answers", *_support(evidence)]
    return "\n\n".join(parts) + "\n"


def _scenes(evidence: "Evidence") -> list[str]:
    columns = list(dict.fromkeys(c for scene in evidence.scenes for c in scene.means))
    means = table(
        ("workload", *columns, "it achieved"),
        (
            (s.name, *(s.means.get(c) for c in columns), _achieved(s.achieved))
            for s in evidence.scenes
            if not s.skipped
        ),
    )
    costs = table(
        ("workload", "s", "ticks", "missed", "failed", "rows", "bytes", "late ms", "GPU read ms"),
        (
            (
                s.name, s.seconds, s.ticks, s.missed, s.failed, s.rows, s.size_bytes,
                _spread(s.late_ms), _spread(s.read_ms.get("gpu0", {})),
            )
            for s in evidence.scenes
            if not s.skipped
        ),
    )  # fmt: skip
    skipped = "\n".join(f"- {s.name}: skipped, {s.skipped}" for s in evidence.scenes if s.skipped)
    return [part for part in (means, costs, skipped) if part]


def _achieved(achieved: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in achieved.items())


def _spread(values: dict[str, float]) -> str:
    return "/".join(f"{value:g}" for value in values.values())


def _agreement(evidence: "Evidence") -> list[str]:
    counts = [
        f"{load}: {', '.join(f'{n} {verdict}' for verdict, n in agreement.counted(several).items())}"
        for load in dict.fromkeys(one.load for one in evidence.compared)
        if (several := [one for one in evidence.compared if one.load == load])
    ]
    differing = [
        (one.load, one.field, one.ours, one.theirs, one.tolerance, one.verdict)
        for one in evidence.compared
        if one.verdict not in ("agree", "both absent")
    ]
    head = ("load", "field", "ours", "theirs", "tolerance", "verdict")
    return ["; ".join(counts) or "nothing was compared", *([table(head, differing)] if differing else [])]  # fmt: skip


def _support(evidence: "Evidence") -> list[str]:
    kinds = Counter((answer.kind, answer.is_supported) for answer in evidence.answers)
    by_kind = table(
        ("kind", "answered", "not"),
        ((kind, kinds[kind, True], kinds[kind, False]) for kind in dict.fromkeys(k for k, _ in kinds)),
    )  # fmt: skip
    slow = sorted((a for a in evidence.answers if a.p50_us >= SLOW_US), key=lambda a: -a.p50_us)
    slowest = table(
        ("call", "code", "p50 ms", "p99 ms"),
        ((f"{a.name} {a.arguments}", a.code, a.p50_us / 1000, a.p99_us / 1000) for a in slow),
    )
    return [by_kind, *([f"Slower than {SLOW_US / 1000:g} ms:", slowest] if slow else [])]
