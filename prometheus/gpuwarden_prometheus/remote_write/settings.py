"""Reads the file of remote write's receivers.

keep_bytes_max = 8589934592             most bytes of segments kept for receivers that are away

[[receiver]]
name = "prometheus"
url = "http://127.0.0.1:9090/api/v1/write"
version = 1                             or 2
names = ["own", "collector"]            name sets: own, dcgm, dcgm49, collector
metrics = ["gpuwarden_gpu_*"]           shell patterns of names; default: all
labels = {cluster = "a"}                added to each series
bearer_token_file = "/etc/gpuwarden/token"
basic_auth = {username = "u", password_file = "/etc/gpuwarden/password"}
tls_ca = "/etc/gpuwarden/ca.pem"
headers = {X-Scope-OrgID = "team"}
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.forwarding.port import ForwardingPlan
from gpuwarden_prometheus.metrics import is_label
from gpuwarden_prometheus.remote_write.computed import COMPUTED_SET, chosen_sources
from gpuwarden_prometheus.remote_write.samples import SENT_SETS, chosen_metrics

KEEP_BYTES_MAX = 8 * 1024**3
NAMES = ("own", COMPUTED_SET)
"""Default of `names`."""
_SETS = (*SENT_SETS, COMPUTED_SET)
_KEYS = frozenset(
    {
        "name", "url", "version", "names", "metrics", "labels", "bearer_token_file", "basic_auth",
        "tls_ca", "headers",
    }
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


class _WrongSettingError(Exception):
    """A setting is wrong; the text says which and what to do."""


@dataclass(frozen=True, slots=True)
class RemoteReceiver:
    """One receiver."""

    name: str
    url: str
    version: int = 1
    names: tuple[str, ...] = NAMES
    metrics: tuple[str, ...] = ("*",)
    labels: Mapping[str, str] = field(default_factory=dict)
    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    tls_ca: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def is_wanted(self, name: str) -> bool:
        """Whether it gets a metric."""
        return any(fnmatchcase(name, pattern) for pattern in self.metrics)

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the collector's metrics that it gets."""
        return chosen_sources(self.is_wanted) if COMPUTED_SET in self.names else ()


def load_receivers(path: Path) -> ForwardingPlan:
    """The receivers of a file. Raises StartError."""
    try:
        said = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StartError(f"remote_write_file {path}: {error}") from error
    try:
        return _plan(said)
    except _WrongSettingError as error:
        raise StartError(f"remote_write_file {path}: {error}") from error


def _plan(said: Mapping[str, Any]) -> ForwardingPlan:
    if unknown := said.keys() - {"receiver", "keep_bytes_max"}:
        raise _WrongSettingError(
            f"unknown key {min(unknown)!r}: the keys are receiver and keep_bytes_max"
        )
    keep = said.get("keep_bytes_max", KEEP_BYTES_MAX)
    if type(keep) is not int or keep < 0:
        raise _WrongSettingError("keep_bytes_max must be a number of bytes")
    listed = said.get("receiver")
    if not isinstance(listed, list) or not listed:
        raise _WrongSettingError("it has no [[receiver]]")
    receivers = tuple(_receiver(one) for one in listed)
    names = tuple(receiver.name for receiver in receivers)
    if len(set(names)) < len(names):
        raise _WrongSettingError("two receivers have the same name")
    return ForwardingPlan(names, keep, receivers)


def _receiver(said: Any) -> RemoteReceiver:
    if not isinstance(said, dict):
        raise _WrongSettingError("receiver must be tables: write [[receiver]]")
    name = said.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _WrongSettingError("each receiver needs a name of letters, digits, - and _")
    try:
        return _checked(name, said)
    except _WrongSettingError as error:
        raise _WrongSettingError(f"receiver {name}: {error}") from error


def _checked(name: str, said: Mapping[str, Any]) -> RemoteReceiver:
    if unknown := said.keys() - _KEYS:
        raise _WrongSettingError(
            f"unknown key {min(unknown)!r}: the keys are {', '.join(sorted(_KEYS))}"
        )
    url = said.get("url")
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise _WrongSettingError("url must be a URL such as http://127.0.0.1:9090/api/v1/write")
    if parts.username is not None:
        raise _WrongSettingError("url must not have a password: use basic_auth")
    version = said.get("version", 1)
    if version not in (1, 2):
        raise _WrongSettingError("version must be 1 or 2")
    names = _texts(said, "names", list(NAMES))
    if wrong := [one for one in names if one not in _SETS]:
        raise _WrongSettingError(f"names: no name set {wrong[0]!r}; choose of {', '.join(_SETS)}")
    auth = said.get("basic_auth", {})
    if not isinstance(auth, dict) or (auth and auth.keys() != {"username", "password_file"}):
        raise _WrongSettingError("basic_auth must have username and password_file")
    if auth and "bearer_token_file" in said:
        raise _WrongSettingError("it has both basic_auth and bearer_token_file")
    receiver = RemoteReceiver(
        name,
        str(url),
        version,
        names,
        _texts(said, "metrics", ["*"]),
        _pairs(said, "labels"),
        _path(said, "bearer_token_file"),
        str(auth["username"]) if auth else None,
        _path(auth, "password_file"),
        _path(said, "tls_ca"),
        _pairs(said, "headers"),
    )
    if wrong := [label for label in receiver.labels if not is_label(label) or label[:2] == "__"]:
        raise _WrongSettingError(f"labels: {wrong[0]!r} cannot be the name of a label")
    if wrong := [one for one in receiver.headers if not _HEADER.fullmatch(one)]:
        raise _WrongSettingError(f"headers: {wrong[0]!r} cannot be the name of a header")
    if not receiver.sources and not chosen_metrics(receiver.names, receiver.is_wanted):
        raise _WrongSettingError("metrics: no name of its name sets fits a pattern")
    return receiver


def _texts(said: Mapping[str, Any], key: str, default: list[str]) -> tuple[str, ...]:
    found = said.get(key, default)
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise _WrongSettingError(f"{key} must be a list of texts")
    return tuple(found)


def _pairs(said: Mapping[str, Any], key: str) -> Mapping[str, str]:
    found = said.get(key, {})
    if not isinstance(found, dict) or not all(
        isinstance(value, str) and "\n" not in value for value in found.values()
    ):
        raise _WrongSettingError(f"{key} must be a table of texts")
    return found


def _path(said: Mapping[str, Any], key: str) -> Path | None:
    found = said.get(key)
    if found is None:
        return None
    if not isinstance(found, str):
        raise _WrongSettingError(f"{key} must be a path")
    return Path(found)
