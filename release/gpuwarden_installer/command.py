"""The command line of a bundle: install, rollback, uninstall."""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NoReturn

from gpuwarden_installer import plan
from gpuwarden_installer.host import Failed, alone, carry_out, look
from gpuwarden_installer.plan import Bundle, Refused, Step, Wish

EPILOG = """\
Every step is printed as it is done. Settings in /etc/gpuwarden and data under /var/lib are never
overwritten. Installing again, with the same file or a newer one, changes what differs and no more.
"""


class Parser(argparse.ArgumentParser):
    """Says what was wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"gpuwarden installer: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    archive = Path(sys.argv[0])
    name = "gpuwarden-installer" if archive.is_dir() else f"sh {archive.name}"
    top = Parser(prog=name, epilog=EPILOG)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made = commands.add_parser("install", help="install or upgrade, start, and say what it sees")
    made.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="a setting of the new settings file; one that is there is kept as it is",
    )  # fmt: skip
    made.add_argument("--collector", metavar="URL", help="short for --set collector_url=URL")
    made.add_argument(
        "--allow-downgrade", action="store_true", help="also where a newer version is installed"
    )
    made.add_argument("--dry-run", action="store_true", help="print the steps and do nothing")
    made.add_argument(
        "--enroll", nargs=argparse.REMAINDER, default=[], metavar="...",
        help="the rest goes to `gpuwarden enroll`",
    )  # fmt: skip
    made = commands.add_parser("rollback", help="go back to the version before the last upgrade")
    made.add_argument("--dry-run", action="store_true", help="print the steps and do nothing")
    made = commands.add_parser("uninstall", help="remove it; settings and data stay")
    made.add_argument("--purge", action="store_true", help="remove settings, data and user too")
    made.add_argument("--dry-run", action="store_true", help="print the steps and do nothing")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the result is the exit code."""
    args = parser().parse_args(argv)
    archive = Path(sys.argv[0]).absolute()
    try:
        return _run(args, archive)
    except (Refused, Failed) as error:
        print(f"gpuwarden installer: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gpuwarden installer: stopped; run it again to complete it", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace, archive: Path) -> int:
    manifest = read_manifest(archive)
    if args.dry_run:
        print("\n".join(map(str, planned(args, archive, manifest))) or "nothing to do")
        return 0
    if os.geteuid() != 0:
        raise Refused("this changes the system: run it with sudo, or with --dry-run to look")
    with alone():
        steps = planned(args, archive, manifest)
        carry_out(steps, archive, manifest["version"])
    if not steps:
        print("nothing to do")
    if args.command == "install":
        report(manifest["part"])
    return 0


def read_manifest(archive: Path) -> dict[str, Any]:
    """The description of the bundle, or of the installer that it left on the host."""
    if archive.is_dir():
        text = (archive / "manifest.json").read_text()
    else:
        with zipfile.ZipFile(archive) as bundle:
            text = bundle.read("manifest.json").decode()
    manifest: dict[str, Any] = json.loads(text)
    return manifest


def planned(args: argparse.Namespace, archive: Path, manifest: dict[str, Any]) -> list[Step]:
    """The steps of a command. Raises Refused."""
    part = manifest["part"]
    if args.command == "rollback":
        return plan.rollback_steps(part, look(part))
    if args.command == "uninstall":
        return plan.uninstall_steps(part, look(part), purge=args.purge)
    if archive.is_dir():
        raise Refused(f"{archive}: only a bundle installs; this rolls back and uninstalls")
    check_python(manifest)
    wish = Wish(settings_from(args), tuple(args.enroll), args.allow_downgrade)
    seen = look(part)
    if wish.settings and plan.settings_of(part) in seen.files:
        print(f"kept   {plan.settings_of(part)}: it is there; edit it to change a setting")
    return plan.install_steps(read_bundle(archive, manifest), wish, seen)


def check_python(manifest: dict[str, Any]) -> None:
    """Raises Refused where the packages are for another Python or machine."""
    wanted = (manifest["python"], manifest["machine"])
    here = (f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine())
    if here == wanted:
        return
    if manifest["carried"]:
        raise Refused("this bundle has a Python of its own: run it with sh")
    raise Refused(
        f"this bundle is for Python {wanted[0]} on {wanted[1]}, and this is Python {here[0]} on"
        f" {here[1]}: run it with python{wanted[0]}, or take the bundle for yours"
    )


def read_bundle(archive: Path, manifest: dict[str, Any]) -> Bundle:
    """The bundle's texts. Raises Refused where an archive is not the one that was packed."""
    with zipfile.ZipFile(archive) as bundle:
        for name, digest in manifest["archives"].items():
            try:
                found = hashlib.sha256(bundle.read(name)).hexdigest()
            except (KeyError, zipfile.BadZipFile):
                found = "none"
            if found != digest:
                raise Refused(f"{archive}: {name} is damaged: fetch the bundle again")
        texts = {
            name: bundle.read(f"host/{name}").decode()
            for name in ("unit", "settings", "sysusers", "tmpfiles")
        }
    return Bundle(
        manifest["part"], manifest["version"], manifest["digest"], **texts,
        unpacked_bytes=manifest["bytes"],
    )  # fmt: skip


def settings_from(args: argparse.Namespace) -> dict[str, str]:
    """Settings of --set and --collector. Raises Refused."""
    settings = {}
    for text in args.settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise Refused(f"--set {text}: say NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings | ({"collector_url": args.collector} if args.collector else {})


def report(part: str) -> None:
    """Report the running version and what it sees. The service is up: systemctl waited until it was ready."""
    name = f"gpuwarden-{part}.service"
    print(f"{name} is {_shown(name, 'ActiveState')}; {_shown(name, 'StatusText') or 'ready'}")
    if part != "agent":
        return
    argv = [
        "runuser", "--user", plan.USER, "--", f"{plan.link_of(part)}/bin/gpuwarden", "agent",
        "doctor", "--config", plan.settings_of(part), "--format", "json",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/")
    print(done.stderr.strip())
    try:
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        print("gpuwarden installer: the doctor gave no answer; run `gpuwarden agent doctor`")
        return
    for check in checks:
        remedy = f"; do: {check['remedy']}" if check.get("remedy") else ""
        print(f"  {check['status']:5} {check['name']}: {check['finding']}{remedy}")


def _shown(unit: str, name: str) -> str:
    argv = ["systemctl", "show", "--property", name, "--value", unit]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
