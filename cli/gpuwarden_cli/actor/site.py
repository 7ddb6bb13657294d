"""Does acts by the site's own programs: a webhook, a command, JupyterHub, and systemd and nvidia-smi on the node that the
actor is on.

Their addresses and paths are settings of the actor; a collector cannot name others.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote

from gpuwarden.http_client import opener
from gpuwarden_cli.actor.acts import Act, ActError, run_program

TIMEOUT_S = 60.0
_ANSWER_BYTES_MAX = 64 * 1024
_GPU = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]{1,250}\.(service|scope)")


class SiteWebhook:
    """A URL that gets the act as JSON, and answers 2xx when it is done."""

    kinds = frozenset({"call_webhook"})

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        """`token_file`: sent as a bearer token."""
        self._url = url
        self._token_file = token_file
        self._answered: set[str] = set()

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`: nothing can be asked before."""
        return None

    def do(self, act: Act) -> None:
        """As of `Scheduler`. The act's id is the header Idempotency-Key."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": act.id}
        _request("POST", self._url, headers | _bearer(self._token_file), json_of(act))
        self._answered.add(act.id)

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`: whether this process was answered."""
        return act.id in self._answered


class SiteCommand:
    """A program that gets the act as JSON on its standard input, and ends with 0 when it is done. No shell."""

    kinds = frozenset({"run_command"})

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: set[str] = set()

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`: nothing can be asked before."""
        return None

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        _run([str(self._path)], json_of(act))
        self._done.add(act.id)

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`: whether it ended with 0 in this process' life."""
        return act.id in self._done


class JupyterHub:
    """The users' servers of a JupyterHub. https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html

    The token needs scope `delete:servers` and `read:servers`.
    """

    kinds = frozenset({"stop_notebook"})

    def __init__(self, url: str, token_file: Path) -> None:
        """`url`: of the hub, such as https://hub.example:8000."""
        self._api = f"{url.rstrip('/')}/hub/api/users"
        self._token_file = token_file

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`."""
        return "the user has no server" if self.is_done(act) else None

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        _request("DELETE", f"{self._api}/{_name(act.user)}/server", self._headers())

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`."""
        body = _request("GET", f"{self._api}/{_name(act.user)}", self._headers())
        try:
            found = json.loads(body)
            return found["server"] is None and not found.get("pending")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ActError("JupyterHub answered without the user's server") from error

    def _headers(self) -> dict[str, str]:
        return {
            name: value.replace("Bearer", "token")
            for name, value in _bearer(self._token_file).items()
        }


class Systemd:
    """Units of the node that the actor is on."""

    kinds = frozenset({"stop_unit"})

    def __init__(self, node: str, units: Sequence[str], systemctl: str = "systemctl") -> None:
        """`units`: patterns of the names of units that may be stopped."""
        self._node = node
        self._units = units
        self._systemctl = systemctl

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`."""
        unit = self._unit(act)
        known = self._show(unit)
        if known.get("ActiveState") != "active":
            return "the unit had ended"
        if known.get("ControlGroup") != act.cgroup:
            raise ActError(f"{unit} has another control group than the user's processes: not done")
        return None

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        _run([self._systemctl, "--no-block", "stop", self._unit(act)])

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`."""
        return self._show(self._unit(act)).get("ActiveState") in ("inactive", "failed")

    def _unit(self, act: Act) -> str:
        """The unit of the control group. Raises ActError where it is not known, or may not be stopped."""
        if act.node != self._node:
            raise ActError(f"this actor is on {self._node}, not on {act.node}: not done")
        if not act.cgroup:
            raise ActError("the control group of the user's processes is not known, or there are several: not done")  # fmt: skip
        # Units of a user's own manager are below user@1000.service: systemd of the system cannot stop them alone.
        unit = next((part for part in act.cgroup.split("/") if part.endswith((".service", ".scope"))), "")  # fmt: skip
        if _UNIT.fullmatch(unit) is None:
            raise ActError(f"{act.cgroup[:100]!r} is of no unit: not done")
        if not any(fnmatchcase(unit, pattern) for pattern in self._units):
            raise ActError(f"this actor may not stop {unit}: --unit {unit}")
        return unit

    def _show(self, unit: str) -> dict[str, str]:
        said = _run([self._systemctl, "show", unit, "--property=ActiveState,ControlGroup"])
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


class NvidiaSmi:
    """Power limits and clocks of the node that the actor is on, back to their defaults; needs root.

    https://docs.nvidia.com/deploy/nvidia-smi/
    """

    kinds = frozenset({"reset_power_limit", "reset_clocks"})

    def __init__(self, node: str, program: str = "nvidia-smi") -> None:
        self._node = node
        self._program = program
        self._unlocked: set[str] = set()

    def look(self, act: Act) -> str | None:
        """As of `Scheduler`."""
        if act.kind == "reset_clocks":
            self._gpu(act)
            return None
        limit, default = self._limits(act)
        return "the limit is the default" if limit == default else None

    def do(self, act: Act) -> None:
        """As of `Scheduler`."""
        gpu = f"--id={self._gpu(act)}"
        if act.kind == "reset_power_limit":
            _, default = self._limits(act)
            _run([self._program, gpu, f"--power-limit={default:g}"])
            return
        _run([self._program, gpu, "--reset-gpu-clocks"])
        _run([self._program, gpu, "--reset-memory-clocks"])
        self._unlocked.add(act.id)

    def is_done(self, act: Act) -> bool:
        """As of `Scheduler`. No driver says whether clocks are locked: the commands' word counts."""
        if act.kind == "reset_clocks":
            return act.id in self._unlocked
        limit, default = self._limits(act)
        return limit == default

    def _limits(self, act: Act) -> tuple[float, float]:
        """Power limit and its default, watts. Raises ActError."""
        fields = "--query-gpu=power.limit,power.default_limit"
        said = _run([self._program, f"--id={self._gpu(act)}", fields, "--format=csv,noheader,nounits"])  # fmt: skip
        try:
            limit, default = map(float, said.split(","))
        except ValueError as error:
            raise ActError(f"nvidia-smi says no power limit of {act.gpu_uuid}: {said.strip()[:100]}") from error  # fmt: skip
        return limit, default

    def _gpu(self, act: Act) -> str:
        if act.node != self._node:
            raise ActError(f"this actor is on {self._node}, not on {act.node}: not done")
        if _GPU.fullmatch(act.gpu_uuid) is None:
            raise ActError(f"{act.gpu_uuid[:50]!r} is not a UUID of NVIDIA's: not done")
        return act.gpu_uuid


def json_of(act: Act) -> bytes:
    """The act for a program of the site."""
    return json.dumps({**asdict(act), "by": act.by.isoformat()}).encode()


def _name(user: str) -> str:
    if not user or "/" in user:
        raise ActError(f"{user[:50]!r} is not a user of JupyterHub: not done")
    return quote(user, safe="")


def _bearer(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return {"Authorization": f"Bearer {path.read_text().strip()}"}
    except (OSError, UnicodeDecodeError) as error:
        raise ActError(f"{path} cannot be read: {error}") from error


def _request(method: str, url: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    """The answer's body, if it is 2xx. Raises ActError."""
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with opener().open(request, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            said = " ".join(error.read(500).decode("utf-8", "replace").split())
        raise ActError(f"{method} was answered with {error.code}: {said[:200]}") from error
    except (OSError, ValueError) as error:
        raise ActError(f"{method} was not answered: {error}") from error


def _run(argv: Sequence[str], stdin: bytes = b"") -> str:
    return run_program(argv, Path(argv[0]).name, timeout_s=TIMEOUT_S, stdin=stdin)
