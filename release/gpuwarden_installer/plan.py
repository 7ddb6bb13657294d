"""Plans what has to be done to a host: a pure function of the bundle, the wish and what is there.

A step that has been done is not planned again, so a second install plans nothing. `--dry-run` prints
the same steps that an install carries out.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

OPT = "/opt/gpuwarden"
ETC = "/etc/gpuwarden"
COMMAND = "/usr/local/bin/gpuwarden"
SYSUSERS = "/etc/sysusers.d/gpuwarden.conf"
TMPFILES = "/etc/tmpfiles.d/gpuwarden.conf"
USER = "gpuwarden"
STATE = {"agent": "/var/lib/gpuwarden-agent", "collector": "/var/lib/gpuwarden"}


class Refused(Exception):
    """Nothing was changed. The message is one line: what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of the bundle that runs."""

    part: str
    version: str
    digest: str
    """Hash of the whole content: two builds of one version have a folder each."""
    unit: str
    settings: str
    """The part's example: every setting, each as a comment."""
    sysusers: str
    tmpfiles: str
    unpacked_bytes: int

    @property
    def folder(self) -> str:
        """Where Python and packages go."""
        return f"{OPT}/{self.part}-{self.version}-{self.digest[:8]}"


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of the installation."""

    settings: Mapping[str, str] = field(default_factory=dict)
    enroll: tuple[str, ...] = ()
    """Arguments of `gpuwarden enroll`; none: no enrolment."""
    allow_downgrade: bool = False


@dataclass(frozen=True, slots=True)
class InstalledState:
    """The installed state of the host."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Text by path, of files that an install writes."""
    links: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    """Version by folder, of those of this part that are complete."""
    unfinished: tuple[str, ...] = ()
    """Folders of this part that an install has begun and not completed."""
    has_user: bool = False
    has_other_part: bool = False
    is_enabled: bool = False
    is_active: bool = False
    free_bytes: int | None = None
    """Below /opt; None: not known."""


@dataclass(frozen=True, slots=True)
class Write:
    """A file of root's, written whole or not at all."""

    path: str
    text: str
    mode: int = 0o644
    group: str = "root"

    def __str__(self) -> str:
        return f"write  {self.path} ({self.mode:04o} root:{self.group})"


@dataclass(frozen=True, slots=True)
class Run:
    """A command."""

    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"run    {shlex.join(_without_secrets(self.argv))}"


@dataclass(frozen=True, slots=True)
class Unpack:
    """A folder with Python and every package of the bundle."""

    folder: str

    def __str__(self) -> str:
        return f"unpack {self.folder}"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, changed in one step."""

    path: str
    target: str

    def __str__(self) -> str:
        return f"link   {self.path} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Remove:
    """A file, link or folder."""

    path: str

    def __str__(self) -> str:
        return f"remove {self.path}"


Step = Write | Run | Unpack | Link | Remove


def install_steps(bundle: Bundle, wish: Wish, seen: InstalledState) -> list[Step]:
    """The steps after which the host runs this bundle. Raises Refused."""
    _check_downgrade(bundle, wish, seen)
    _check_room(bundle, seen)
    steps = [*_account(bundle, seen), *_environment(bundle, seen), *_settings(bundle, wish, seen)]
    if wish.enroll and not _is_enrolled(bundle.part, seen):
        steps.append(Run((f"{bundle.folder}/bin/gpuwarden", "enroll", *wish.enroll)))
    switch = [*_switch(bundle, seen)]
    return [*steps, *switch, *_service(bundle, seen, is_changed=bool(steps or switch))]


def rollback_steps(part: str, seen: InstalledState) -> list[Step]:
    """Back to the version before, which an upgrade keeps. Raises Refused."""
    current, previous = link_of(part), previous_link_of(part)
    before = seen.links.get(previous)
    if before is None or before not in seen.folders:
        raise Refused(f"{previous}: no version to go back to; install the one that you want")
    steps: list[Step] = [Link(current, before)]
    if current in seen.links:
        steps.append(Link(previous, seen.links[current]))
    return [*steps, Run(("systemctl", "restart", f"gpuwarden-{part}.service"))]


def uninstall_steps(part: str, seen: InstalledState, *, purge: bool) -> list[Step]:
    """Takes the part away; settings, data and user go only with `purge`."""
    unit = unit_of(part)
    steps: list[Step] = []
    if seen.is_enabled or seen.is_active:
        steps.append(Run(("systemctl", "disable", "--now", f"gpuwarden-{part}.service")))
    if unit in seen.files:
        steps += [Remove(unit), Run(("systemctl", "daemon-reload"))]
    for link in (COMMAND, link_of(part), previous_link_of(part)):
        if seen.links.get(link, "").startswith(f"{OPT}/{part}"):
            steps.append(Remove(link))
    steps += [Remove(folder) for folder in (*seen.folders, *seen.unfinished)]
    if not seen.has_other_part:
        steps += [Remove(path) for path in (SYSUSERS, TMPFILES) if path in seen.files]
        if seen.folders or seen.unfinished:
            steps.append(Run(("rmdir", "--ignore-fail-on-non-empty", OPT)))
    if purge:
        steps += [Remove(STATE[part]), Remove(settings_of(part))]
        if not seen.has_other_part:
            steps.append(Remove(ETC))
            if seen.has_user:
                steps.append(Run(("userdel", USER)))
    return steps


def link_of(part: str) -> str:
    """Link to the folder that runs."""
    return f"{OPT}/{part}"


def previous_link_of(part: str) -> str:
    """Link to the folder that ran before."""
    return f"{OPT}/{part}-previous"


def unit_of(part: str) -> str:
    """Path of the part's unit."""
    return f"/etc/systemd/system/gpuwarden-{part}.service"


def settings_of(part: str) -> str:
    """Path of the part's settings."""
    return f"{ETC}/{part}.toml"


def _check_downgrade(bundle: Bundle, wish: Wish, seen: InstalledState) -> None:
    current = seen.folders.get(seen.links.get(link_of(bundle.part), ""))
    if current is None or wish.allow_downgrade:
        return
    if version_key(bundle.version) < version_key(current):
        raise Refused(
            f"{bundle.part} {current} is installed and this is {bundle.version}: an older version may"
            " not read what a newer one stored; --allow-downgrade tries it"
        )


def _check_room(bundle: Bundle, seen: InstalledState) -> None:
    # What is compiled at the install is a part of it again.
    needed = bundle.unpacked_bytes * 3 // 2
    if bundle.folder in seen.folders or seen.free_bytes is None or needed <= seen.free_bytes:
        return
    raise Refused(
        f"{OPT} needs {needed // 1_000_000} MB and its file system has"
        f" {seen.free_bytes // 1_000_000} MB free: make room"
    )


_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(\.dev|a|b|rc)(\d+))?")
_STAGES = (".dev", "a", "b", "rc", None)


def version_key(version: str) -> tuple[int, ...]:
    """Sorts versions in the forms that we publish. Raises Refused for any other."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise Refused(f"version {version!r} is not of the form 1.2.3 or 1.2.3rc1")
    major, minor, patch, stage, number = found.groups()
    return (int(major), int(minor), int(patch), _STAGES.index(stage), int(number or 0))


def _account(bundle: Bundle, seen: InstalledState) -> Iterator[Step]:
    if seen.files.get(SYSUSERS) != bundle.sysusers or not seen.has_user:
        yield Write(SYSUSERS, bundle.sysusers)
        yield Run(("systemd-sysusers", SYSUSERS))
    if seen.files.get(TMPFILES) != bundle.tmpfiles:
        yield Write(TMPFILES, bundle.tmpfiles)
        yield Run(("systemd-tmpfiles", "--create", TMPFILES))


def _environment(bundle: Bundle, seen: InstalledState) -> Iterator[Step]:
    yield from (Remove(folder) for folder in seen.unfinished)
    if bundle.folder not in seen.folders:
        yield Unpack(bundle.folder)


def _settings(bundle: Bundle, wish: Wish, seen: InstalledState) -> Iterator[Step]:
    path, is_new = settings_of(bundle.part), bundle.folder not in seen.folders
    text = with_settings(bundle.settings, wish.settings)
    if path not in seen.files:
        yield Write(path, text, 0o640, USER)
    elif not is_new:
        return
    # A version that does not accept the settings must not take the place of one that does.
    yield Run((f"{bundle.folder}/bin/gpuwarden", bundle.part, "config", "--config", path))


def _is_enrolled(part: str, seen: InstalledState) -> bool:
    path = settings_of(part)
    try:
        return "token_file" in tomllib.loads(seen.files.get(path, ""))
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"{path}: {error}") from error


def with_settings(example: str, settings: Mapping[str, str]) -> str:
    """The example with these settings in force. Raises Refused for a name that it lacks."""
    for name, value in settings.items():
        line = f"{name} = {_toml_value(value)}"
        pattern = rf"^# {re.escape(name)} = .*$"
        example, count = re.subn(pattern, line.replace("\\", r"\\"), example, flags=re.MULTILINE)
        if not count:
            raise Refused(f"--set {name}: no such setting; docs/configure.md lists them")
    return example


def _toml_value(text: str) -> str:
    try:
        is_toml = [*tomllib.loads(f"value = {text}")] == ["value"]
    except tomllib.TOMLDecodeError:
        is_toml = False
    return text if is_toml else json.dumps(text)


def _switch(bundle: Bundle, seen: InstalledState) -> Iterator[Step]:
    """The new version takes the place of the old, which stays for a rollback; older ones go."""
    current, previous = link_of(bundle.part), previous_link_of(bundle.part)
    before = seen.links.get(current)
    if before != bundle.folder:
        if before is not None and before in seen.folders:
            yield Link(previous, before)
        yield Link(current, bundle.folder)
        kept = {bundle.folder, before}
        yield from (Remove(folder) for folder in seen.folders if folder not in kept)
    command = f"{current}/bin/gpuwarden"
    if COMMAND not in seen.links and COMMAND not in seen.files:
        yield Link(COMMAND, command)


def _service(bundle: Bundle, seen: InstalledState, *, is_changed: bool) -> Iterator[Step]:
    unit, name = unit_of(bundle.part), f"gpuwarden-{bundle.part}.service"
    has_unit = seen.files.get(unit) == bundle.unit
    if not has_unit:
        yield Write(unit, bundle.unit)
        yield Run(("systemctl", "daemon-reload"))
    if not seen.is_enabled:
        yield Run(("systemctl", "enable", name))
    if is_changed or not has_unit or not seen.is_active:
        yield Run(("systemctl", "restart", name))


def _without_secrets(argv: tuple[str, ...]) -> Iterator[str]:
    hides_next = False
    for word in argv:
        if hides_next:
            yield "***"
        elif word.startswith("--token="):
            yield "--token=***"
        else:
            yield word
        hides_next = word == "--token"
