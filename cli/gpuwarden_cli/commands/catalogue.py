"""Lists the catalogue that the product brings: `gpuwarden models` and `gpuwarden instances`."""

import argparse
from collections.abc import Sequence
from typing import Any

from gpuwarden_cli.output import ROW_FORMATS, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format
from gpuwarden_client.http import CallError

_MODELS = (
    "model", "vendor", "kind", "memory_gib", "bandwidth_gb_s", "tflops", "fp32_tflops", "tf32_tflops", "fp8_tflops",
    "int8_tops", "tdp_watts", "usd_per_hour", "spot_usd_per_hour", "price_from",
)  # fmt: skip
_INSTANCES = (
    "instance", "cloud", "model", "gpus", "vcpus", "memory_gib", "usd_per_hour", "usd_per_gpu_hour",
    "reserved_usd_per_hour", "price_from",
)  # fmt: skip


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    _add(
        commands, "models", models, "list models of GPUs and other accelerators",
        "With memory, bandwidth, dense TFLOPS (FP16 or BF16) and default price. What a fleet pays is in gpus.usd_per_hour.",
    )  # fmt: skip
    _add(
        commands, "instances", instances, "list instances of clouds with accelerators",
        "With devices and list price on demand. A node's own is in nodes.instance_type.",
    )  # fmt: skip


def _add(commands: Commands, name: str, run: Any, text: str, more: str) -> None:
    made = add_command(commands, name, run, text, more)
    made.add_argument(
        "words", metavar="TEXT", nargs="*", help="only those with each of these in name or vendor"
    )
    add_format(made, ROW_FORMATS)


def models(args: argparse.Namespace) -> int:
    """Run `gpuwarden models [TEXT…]`."""
    from gpuwarden.models import MODELS
    from gpuwarden.offers import SPOT

    rows = []
    for one in MODELS:
        if not _has(args.words, one.name, one.vendor, one.kind):
            continue
        peaks, price, spot = one.peaks, one.price, SPOT.get(one.name)
        rows.append([
            one.name, one.vendor, one.kind, one.memory_gib, one.bandwidth_gb_s, one.tflops,
            peaks.fp32, peaks.tf32, peaks.fp8, peaks.int8, one.tdp_watts,
            price and price.usd_per_hour, spot and spot[0],
            price and f"{price.provider}, {price.read_on}",
        ])  # fmt: skip
    return _show("models", _MODELS, rows, args)


def instances(args: argparse.Namespace) -> int:
    """Run `gpuwarden instances [TEXT…]`."""
    from gpuwarden.instances import INSTANCES
    from gpuwarden.models import MODELS

    vendors = {model.name: model.vendor for model in MODELS}
    rows = []
    for one in INSTANCES:
        if not _has(args.words, one.name, one.cloud, one.model, vendors[one.model]):
            continue
        usd = one.usd_per_gpu_hour
        rows.append([
            one.name, one.cloud, one.model, one.gpus, one.vcpus, one.memory_gib, one.usd_per_hour,
            usd and round(usd, 4), one.reserved_usd_per_hour,
            f"{one.price_region}, {one.price_read_on}" if usd else None,
        ])  # fmt: skip
    return _show("instances", _INSTANCES, rows, args)


def _has(words: Sequence[str], *texts: str) -> bool:
    said = " ".join(texts).lower()
    return all(word.lower() in said for word in words)


def _show(
    command: str, columns: Sequence[str], rows: list[list[Any]], args: argparse.Namespace
) -> int:
    if not rows:
        what = " ".join(args.words)
        raise CallError(
            f"no {command} with {what!r} in the catalogue; gpuwarden {command} lists all"
        )
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 0
