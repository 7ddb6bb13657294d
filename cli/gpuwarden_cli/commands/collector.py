"""Runs, checks and maintains the collector: `gpuwarden collector run|init|config|doctor|check|backup|...`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.commands import certificates
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group
from gpuwarden_cli.progress import progress
from gpuwarden_cli.settings import collector_settings, load_settings, show

if TYPE_CHECKING:
    from gpuwarden_collector.storage.check import CheckReport


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "collector", "run, check and maintain the collector")
    parser = add_command(group, "run", _run, "run the collector with rules and page")
    _add_settings(parser)
    parser = add_command(
        group, "init", certificates.init, "create a private CA and a certificate for TLS"
    )
    certificates.add_flags(parser)
    parser = add_command(group, "config", _config, "show every setting, its value and its source")
    _add_settings(parser)
    add_format(parser)
    parser = add_command(
        group, "doctor", _doctor, "check this collector and its host, and how to fix problems",
        "Asks the running collector over its data folder, so run it as root or as the collector's user."
        " Exits with 1 if a check fails.",
    )  # fmt: skip
    _add_settings(parser)
    add_format(parser)
    parser = add_command(
        group, "check", _check, "check the store while the collector is stopped",
        "Exits with 1 if a problem remains.",
    )  # fmt: skip
    _add_store(parser)
    parser.add_argument(
        "--repair", action="store_true", help="set damaged files aside, and list what is lost"
    )
    parser.add_argument("--read", action="store_true", help="read every file to its end (slow)")
    parser = add_command(
        group, "backup", _backup, "copy the store to a new folder; the collector may run"
    )
    parser.add_argument(
        "destination", type=Path, metavar="DEST", help="a folder that does not exist yet"
    )
    _add_store(parser)
    parser = add_command(group, "restore", _restore, "restore the store from a backup")
    parser.add_argument("source", type=Path, metavar="SRC", help="a folder that `backup` made")
    _add_store(parser)
    parser = add_command(
        group, "recover", _recover, "seal the second copies of a collector that is lost",
        "Run it on the standby's host as the collector's user; without COLLECTOR it lists the copies.",
    )  # fmt: skip
    parser.add_argument("collector", nargs="?", metavar="COLLECTOR", help="its identity")
    _add_store(parser)
    parser = add_command(group, "maintain", _maintain, "run the store's maintenance now")
    _add_store(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    parser.add_argument("--data-dir", metavar="DIR", help="data folder")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", help="port to listen on (default 8750)")
    parser.add_argument("--data-dir", metavar="DIR", help="data folder")
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    parser.add_argument("--log-format", metavar="FORM", help="text or json")


def _run(args: argparse.Namespace) -> int:
    from gpuwarden_collector.processes.footprint import keep_small

    keep_small()
    from gpuwarden_cli.composition.collector import run_collector

    return run_collector(collector_settings(args), lambda: collector_settings(args))


def _config(args: argparse.Namespace) -> int:
    from gpuwarden_collector.settings import CollectorSettings

    show(load_settings(CollectorSettings, "collector", args), args.format)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from gpuwarden_cli.commands.doctor import run_collector_doctor

    config = Path(args.config) if args.config else None
    return run_collector_doctor(collector_settings(args), config, args.format)


def _store_of(args: argparse.Namespace) -> Path:
    """The data folder of the settings."""
    return collector_settings(args).data_dir


def _check(args: argparse.Namespace) -> int:
    from gpuwarden_collector.storage.check import check

    report = check(_store_of(args), reads_all=args.read)
    _say_facts(report)
    left = 0
    for problem in report.problems:
        print(f"wrong: {problem.what}\n   do: {problem.todo}")
        if not args.repair or problem.repair is None:
            left += 1
            continue
        try:
            problem.repair()
        except OSError as error:
            raise StartError(f"{error.filename}: {error.strerror}") from error
        print(" done: repaired")
    if not report.problems:
        print("no problem was found")
    return 1 if left else 0


def _say_facts(report: "CheckReport") -> None:
    for fact in report.facts:
        print(fact)


def _backup(args: argparse.Namespace) -> int:
    from gpuwarden_collector.storage.backup import backup

    store = _store_of(args)
    with progress("backup") as bar:
        report = backup(store, args.destination.absolute(), SystemClock(), bar.tell)
    _say_facts(report)
    print(f"backed up and checked: {args.destination}")
    return 0


def _restore(args: argparse.Namespace) -> int:
    from gpuwarden_collector.storage.backup import restore

    store = _store_of(args)
    with progress("restore") as bar:
        report = restore(args.source.absolute(), store, bar.tell)
    _say_facts(report)
    print(f"restored and checked: {store}")
    return 0


def _recover(args: argparse.Namespace) -> int:
    import asyncio

    from gpuwarden_collector.recovery import recover
    from gpuwarden_collector.storage.second_copy import CopyFolder

    settings = collector_settings(args)
    if args.collector is None:
        try:
            found = CopyFolder(settings.data_dir).collectors()
        except OSError as error:
            raise StartError(f"{settings.data_dir}: {error.strerror}") from error
        print("\n".join(found) or "there are no second copies here")
        return 0
    rows = asyncio.run(recover(settings, args.collector, SystemClock()))
    print(f"{rows:,} rows of collector {args.collector} are in the lake now")
    return 0


def _maintain(args: argparse.Namespace) -> int:
    from gpuwarden_collector.processes.control_socket import ask

    store = _store_of(args)
    try:
        said = ask(store, "maintain", timeout_s=3_600.0)
    except OSError as error:
        raise StartError(f"{store}: {error}: run this as the collector's user") from error
    if said is None:
        raise StartError(f"no collector runs on {store}; it maintains its store when it runs")
    if "error" in said:
        raise StartError(said["error"])
    for task in said["tasks"]:
        print(f"{task}{': failed, see the log' if task in said['put_off'] else ''}")
    print(f"{len(said['tasks'])} tasks")
    return 1 if said["put_off"] else 0
