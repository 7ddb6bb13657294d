"""Runs collector, rules, page and this host's agent in one process: `gpuwarden up`."""

import argparse
from pathlib import Path

from gpuwarden_cli.parser import Commands, add_command, count, port_number


def add_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "up", _run, "collector, rules, page and this host's agent in one process",
        "Without a GPU on this host, simulated nodes are added.",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=port_number, default=8750, help="port of the page (default 8750)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="data folder (default"
        " ~/.local/share/gpuwarden)",
    )  # fmt: skip
    parser.add_argument(
        "--simulate", type=_simulated, metavar="GPUS",
        help="number of simulated GPUs (default: 8 if this host has no GPU; 0: none); mixed: ten nodes of seven vendors",
    )  # fmt: skip
    parser.add_argument(
        "--history", type=count, metavar="S",
        help="seconds of past of the simulated GPUs (default 7200, of more than 64 GPUs less)",
    )  # fmt: skip
    parser.add_argument(
        "--model",
        default="H100-SXM-80GB",
        help="models to simulate, separated by commas: node by node",
    )


def _simulated(text: str) -> int | str:
    return text if text == "mixed" else count(text)


def _run(args: argparse.Namespace) -> int:
    from gpuwarden_collector.processes.footprint import keep_small

    keep_small()
    from gpuwarden_cli.composition.up import default_data_dir, run_up

    data = args.data or default_data_dir()
    return run_up(
        port=args.port,
        data=data,
        simulate=args.simulate,
        model_names=args.model,
        history=args.history,
    )
