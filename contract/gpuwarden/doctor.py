"""Defines the checks of `doctor` commands: the finding, its severity, and the remedy."""

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

OK, WARN, FAIL = "ok", "warn", "fail"

ENDS_SOON = timedelta(days=21)
"""Certificates that expire within this time are a warning."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    status: str
    """ok; warn: it works without; fail: samples are lost or do not arrive, or notifications are not sent."""
    finding: str
    remedy: str = ""
    """What to do; empty: nothing."""


def worst(checks: Iterable[Check]) -> str:
    """The worst status of the checks."""
    return max((check.status for check in checks), key=(OK, WARN, FAIL).index, default=OK)


def check_life(name: str, what: str, ends_at: datetime, now: datetime, remedy: str) -> Check:
    """Check that a certificate or the like does not expire soon."""
    left = ends_at - now
    if left <= timedelta(0):
        return Check(name, FAIL, f"{what} has expired on {ends_at:%Y-%m-%d}", remedy)
    days = f"{what} ends on {ends_at:%Y-%m-%d}, in {left.days} days"
    return Check(name, WARN, days, remedy) if left <= ENDS_SOON else Check(name, OK, days)


Ask = Callable[[Sequence[str]], str]
"""Runs a command and returns its output; raises OSError."""


def check_unit(
    name: str, part: str, *, is_systemd: bool | None = None, ask: Ask | None = None
) -> Check | None:
    """Check the part's systemd unit; None: the host has no systemd, or no such unit."""
    here = Path("/run/systemd/system").is_dir() if is_systemd is None else is_systemd
    if not here:
        return None
    unit = f"gpuwarden-{part}.service"
    properties = "LoadState,ActiveState,SubState,UnitFileState,NRestarts"
    try:
        said = (ask or _said)(["systemctl", "show", "--property", properties, unit])
    except OSError as error:
        return Check(name, WARN, f"systemctl: {error.strerror or error}")
    shown = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return None if shown.get("LoadState") in (None, "not-found") else _unit(name, unit, shown)


def _unit(name: str, unit: str, shown: Mapping[str, str]) -> Check:
    state, restarts = shown.get("ActiveState", "unknown"), shown.get("NRestarts", "0")
    if state != "active":
        finding = f"{unit} is {state} ({shown.get('SubState', 'unknown')})"
        remedy = f"`systemctl status {unit}` says why; then `systemctl restart {unit}`"
        return Check(name, FAIL, finding, remedy)
    if shown.get("UnitFileState") not in ("enabled", "static", "linked"):
        finding = f"{unit} is active, and would not start with the host"
        return Check(name, WARN, finding, f"systemctl enable {unit}")
    if restarts not in ("", "0"):
        finding = f"{unit} is active, after {restarts} restarts by systemd"
        return Check(name, WARN, finding, f"journalctl -u {unit} says why it ended")
    return Check(name, OK, f"{unit} is active")


def _said(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer within {error.timeout:g} s") from error
    return done.stdout
