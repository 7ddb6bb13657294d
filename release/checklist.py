"""Lists the steps of a release in the order of docs/releasing.md, and checks those that a program can check.

A check never stops a build: a site may build any tree for its own fleet.
"""

import hashlib
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paths import ROOT

from gpuwarden.minisign import PublicKey, SignatureError, verify

SUMS, PUBLIC = "SHA256SUMS", "release.pub"


@dataclass(frozen=True, slots=True)
class Built:
    """What `make release` built, and the tree that it built it from."""

    paths: Sequence[Path] = ()
    root: Path = field(default=ROOT)

    @property
    def version(self) -> str:
        """The version in pyproject.toml."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text())["project"]
        return str(project["version"])

    def file(self, name: str) -> Path | None:
        """The built file of this name."""
        return next((path for path in self.paths if path.name == name), None)


Check = Callable[[Built], str | None]
"""Says what is missing; None: nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a release."""

    name: str
    """As in docs/releasing.md."""
    command: str
    """What a person does for it."""
    check: Check | None = None
    """None: a person must know whether it is done."""


def report(built: Built) -> Iterator[str]:
    """A line for each step: `done`, `to do` with what is missing, or `by hand`."""
    for number, step in enumerate(STEPS, 1):
        if step.check is None:
            state, text = "by hand", step.command
        elif missing := step.check(built):
            state, text = "to do", f"{missing}: {step.command}"
        else:
            state, text = "done", ""
        yield f"{number:2}. {state:<8} {step.name}{': ' if text else ''}{text}"


def _version(built: Built) -> str | None:
    """pyproject.toml, the package and the chart have one version."""
    wanted = built.version
    patterns = {
        "contract/gpuwarden/__init__.py": r'^__version__ = "(.+)"',
        "deploy/helm/gpuwarden/Chart.yaml": r"^(?:version|appVersion): (\S+)",
    }
    for name, pattern in patterns.items():
        found = set(re.findall(pattern, (built.root / name).read_text(), re.MULTILINE))
        if found != {wanted}:
            return f"{name} has {', '.join(sorted(found)) or 'no version'}, not {wanted}"
    return None


def _changelog(built: Built) -> str | None:
    heading = rf"^## \[{re.escape(built.version)}\] - \d{{4}}-\d\d-\d\d$"
    if re.search(heading, (built.root / "CHANGELOG.md").read_text(), re.MULTILINE):
        return None
    return f"CHANGELOG.md has no dated section of {built.version}"


def _commit(built: Built) -> str | None:
    changed = _git(built, "status", "--porcelain")
    if changed is None:
        return "this is not a git checkout"
    return f"{len(changed.splitlines())} files are not committed" if changed else None


def _build(built: Built) -> str | None:
    sums = built.file(SUMS)
    return None if sums else "nothing is built"


def _sign(built: Built) -> str | None:
    return None if built.file(f"{SUMS}.minisig") else f"{SUMS} has no signature"


def _verify(built: Built) -> str | None:
    """Reads the signature and every file again, as an installer does."""
    sums, signature, public = map(built.file, (SUMS, f"{SUMS}.minisig", PUBLIC))
    if not (sums and signature and public):
        return f"{SUMS} has no signature"
    try:
        verify(PublicKey.parse(public.read_text()), signature.read_text(), sums.read_bytes())
    except SignatureError as error:
        return f"{SUMS}: {error}"
    for line in sums.read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        path = built.file(name)
        if path is None or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return f"{name} is not what {SUMS} says"
    return None


def _tag(built: Built) -> str | None:
    tags = (_git(built, "tag", "--points-at", "HEAD") or "").split()
    return None if f"v{built.version}" in tags else f"HEAD has no tag v{built.version}"


def _git(built: Built, *words: str) -> str | None:
    done = subprocess.run(
        ["git", *words], cwd=built.root, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


STEPS = (
    Step("Version", "set one version, then make manifests", _version),
    Step("Changelog", "name and date the section Unreleased", _changelog),
    Step("Generated pages", "make docs"),
    Step("Commit", "commit everything", _commit),
    Step("Tests", ".ci/run on a clean checkout of the commit"),
    Step("Tag", "git tag --sign vVERSION, and push the tag", _tag),
    Step("Build", "make release", _build),
    Step("Sign", 'make release ARGS="--sign KEY"', _sign),
    Step("Verify", "gpuwarden verify dist/*", _verify),
    Step("Compare", "compare SHA256SUMS with that of the drafted release"),
    Step("Images", "make images"),
    Step("Publish", "add the signature to the draft, and publish it"),
    Step("Next", "start a section Unreleased in CHANGELOG.md"),
)
"""docs/releasing.md explains each."""
