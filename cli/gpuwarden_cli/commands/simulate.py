"""Simulates a fleet that sends to a collector: `gpuwarden simulate`."""

import argparse
from pathlib import Path

from gpuwarden_cli.parser import Commands, add_command, count
from gpuwarden_client.http import collector_url


def add_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "simulate", _run, "simulate a fleet that sends data to a collector",
        "The nodes are real agents with simulated GPUs.",
    )  # fmt: skip
    parser.add_argument("--nodes", type=count, required=True, help="how many nodes")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--gpus-per-node", type=count, default=0, help="GPUs of each node")
    what.add_argument("--replay", type=Path, metavar="FILE", help="each node plays this recording")
    parser.add_argument(
        "--duration", type=float, metavar="S", help="seconds (default: until Ctrl-C)"
    )
    parser.add_argument(
        "--history", type=count, default=0, metavar="S", help="start this many seconds in the past"
    )
    parser.add_argument(
        "--model", default="H100-SXM-80GB", metavar="MODELS",
        help="models, separated by commas, node by node (default H100-SXM-80GB)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="same seed, same fleet (default 1)")
    parser.add_argument("--script", type=Path, metavar="FILE", help="faults to show, as TOML")
    parser.add_argument("--collector-url", metavar="URL", help="default GPUWARDEN_URL")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="keep spools here (default: in memory)"
    )


def _run(args: argparse.Namespace) -> int:
    from gpuwarden_cli.composition.simulation import run_simulation

    return run_simulation(
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        model_names=args.model,
        seed=args.seed,
        collector_url=args.collector_url or collector_url(),
        duration_s=args.duration,
        history_s=args.history,
        state_dir=args.state_dir,
        replay=args.replay,
        script=args.script,
    )
