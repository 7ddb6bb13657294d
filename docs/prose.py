"""Finds phrases that a reader with school English stumbles over, and says what to write instead.

Reads Markdown pages without their code, and docstrings, comments and texts of Python. What a file had when a phrase
was added is counted in prose_baseline.json; a file may never have more.

    python -m docs.prose [FILES]     findings of files that have more than the baseline; of all files: --all
    python -m docs.prose --update    lower the baseline to what there is, also after files were moved
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BASELINE = Path(__file__).with_name("prose_baseline.json")
SKIPPED = ("docs/prose.py", "tests/test_prose.py")
"""They quote the phrases."""
WORDS_MIN = 3
"""A text of fewer words is a name or data."""

PHRASES = {
    # Passive or indirect forms of "tell", "look", "hear", "have".
    r"tells? of": "reports, shows",
    r"(?:is|are|was|were|be|been|being) told(?! (?:to|that|about|which|what|how|why|where|when|whether|apart|from)\b)": "is notified (a person), is reported (a fact), is passed (a function)",
    r"(?:tells?|told|telling) apart": "distinguish",
    r"tells? (?:it|them|one|what) from": "distinguishes it from",
    r"hea(?:rd|rs|r) of": "last seen, reported, known",
    r"spea(?:ks?|king) (?:of|for)": "names, reports; is evidence for",
    r"(?:say|says|said) of": "say about, report about",
    r"it is said": "name who says it",
    r"nobody has said": "it is not known",
    r"(?:is|are|was|were|be|been|being) looked (?:at|after|into)": "is read, is checked",
    r"looks? whether": "checks whether",
    r"looks? after(?! another)": "monitors, maintains",
    r"(?:(?:two|between) looks|(?:first|last|each|every|another|older|newer|next) look)(?! (?:like|up|at|for|away|as)\b)": "reading, check, poll",
    r"be had": "be read, be available",
    r"(?:is|are|was|were|be|been) not got|gotten": "could not be read; obtained",
    r"have (?:it|them|the \w+(?: \w+)?|its \w+|their \w+) (?:know|see|queue|keep|called|forget|write|read|take|stored)": "name the action: register, tell it to, make it",
    # Images, and idioms that a dictionary does not explain word by word.
    r"l(?:et|ets|etting) go of": "release, delete, drop",
    r"l(?:et|ets|etting) (?:\w+ )?in": "admit, accept",
    r"go(?:es)? on(?! (?:the|a|an|to)\b)|went on": "continues",
    r"(?:not|must|to|rollups) get on|gets on": "makes progress",
    r"giv(?:e|es|ing) back": "return, release",
    r"(?:is|are|was|be) taken for": "is treated as",
    r"what (?:came|becomes|became|comes) of": "the result of",
    r"makes? of(?! (?:it )?(?:steel|wood)\b)": "returns for, does with",
    r"comes? to (?:its|an|their) end": "ends",
    r"for want of": "because there is no",
    r"for good(?! (?:reasons?|measure|results?)\b)": "permanently",
    r"in vain": "without success",
    r"all in all": "in total",
    r"at hand": "available, in memory",
    r"(?:has|have) it all": "has all of it, or name what it has",
    r"what is what|who is who": "name the columns, the users",
    r"sees? to (?:it|that)": "ensures",
    r"(?:is|are) to blame": "is the cause",
    r"put right": "corrected",
    r"now and then|once in a while": "sometimes, or the interval",
    r"again and again": "repeatedly",
    r"by turns": "alternately",
    r"a hair (?:more|less)": "slightly more",
    r"and the like|(?:and|or) its like": "and similar ones, or the list",
    r"dear|dearer|dearest": "expensive, costly",
    # Numbers and times that are not named.
    r"every so (?:many|often)": "every N, or the interval",
    r"so often(?!.{0,40}\bthat\b)": "name the interval or the count",
    r"(?:for|after|in|of|took|takes|waits|rests) so (?:long|many|much)(?! as\b)(?!.{0,40}\bthat\b)": "for this time, after N",
    r"(?<!heard )(?<!seen )of before(?! (?:it|that|the|this)\b)": "earlier, previous",
    r"of late(?= did|[.,;:])": "recently",
    r"another one (?:now|by now)": "has changed",
    # Subjects that are not named.
    r"whoever": "name the user, the caller or the part",
    r"(?:by|to|from) who (?:asks|comes|reads|has|wants|sends|writes|takes|waits)": "by the caller, by the client",
    r"whom (?:it|they) (?:is|are|was|concerns?|asks?|believes?|belongs?)": "name the person or the node",
    r"whatever happens|whatever (?:it|that|they) (?:is|was|are|were)": "in every case",
    r"wherever (?:it|they) (?:may be|stands?)": "anywhere",
    r"as far as (?:can be|it can be) told": "probably; say what is unknown",
    r"that is what (?:is|was|it|they)": "put the verb in front",
    r"the one of": "that of, or repeat the noun",
    r"that there (?:is|are|was|were)(?=[.,;:)]|$)": "existing, or leave it out",
    # Word order and words of other languages.
    r"what changes in place": "rows that are updated",
    r"(?:is|are) looked at whether": "the check is whether",
    r"(?<!there )(?<!why )(?<!where )(?<!which )(?:is|are|was|were) no (?!longer|more|less|such|room|doubt|way|need|problem|later|older|other|one|fewer|greater|larger|faster|slower|better|worse|\w+ (?:yet|here|there)\b)\w+": "is not a",
    r"(?:is|are) to be \w+(?:ed|en|un|pt|ut|nt|ld|wn|de|ft|ad)": "must be, will be",
    r"(?<=[\w,;] )but for(?= \w)": "except, apart from",
    r"(?:no|none|nothing|all) but(?= \w)": "only; all except",
    r"(?:what|that) holds of|holds of": "is true for, applies to",
    r"stands? (?:in(?! for\b)|there|once|at|beside|on|behind|below|above|alone)|stood (?:in|there|at|beside|on)": "is in, is at",
    r"anew": "again, from the start",
    r"upon which": "then",
    r"lest|ere|whence|thereof|whereof|therein|wherein|hereby|thereby|thereupon|whereupon|hitherto|henceforth|nought": "a word of today",
}
"""What to avoid, as a regular expression of words with single spaces, and what to write instead."""


def _over_lines(phrase: str) -> str:
    """The phrase where any white space may be between its words; lookbehind has a fixed width."""
    return re.sub(
        r"\(\?<[!=][^)]*\)| ",
        lambda m: r"\s+" if m[0] == " " else m[0].replace(" ", r"\s"),
        phrase,
    )


_ANY = "|".join(f"(?P<p{number}>{_over_lines(phrase)})" for number, phrase in enumerate(PHRASES))
_PATTERN = re.compile(rf"(?<![\w-])(?:{_ANY})(?![\w-])", re.DOTALL)
_INSTEAD = list(PHRASES.values())
_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)\s]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)


_COMMENT = re.compile(r"(?:^ *|  )#:? (.+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase in a file."""

    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.phrase}": {self.instead}'


def findings(path: str, root: Path = ROOT) -> list[Finding]:
    """The phrases in a file, by line."""
    text = (root / path).read_text()
    texts = markdown_texts(text) if path.endswith(".md") else python_texts(text)
    found = []
    for first, prose in texts:
        for match in _PATTERN.finditer(prose.lower()):
            line = first + prose[: match.start()].count("\n")
            instead = _INSTEAD[int((match.lastgroup or "p0")[1:])]
            found.append(Finding(path, line, " ".join(match[0].split()), instead))
    return sorted(found, key=lambda f: f.line)


def markdown_texts(text: str) -> Iterator[tuple[int, str]]:
    """The page without its code and addresses."""
    yield 1, _CODE.sub(lambda m: re.sub(r"[^\n]", "`", m[0]), text)


def python_texts(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, other texts of several words, and comments, each with its first line."""
    stack: list[Any] = [ast.parse(text)]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        elif isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
            stack += [part for part in node.values if not isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.count(" ") >= WORDS_MIN - 1:
                yield node.lineno, node.value
        elif isinstance(node, ast.AST):
            stack += vars(node).values()
    yield from _comments(text)


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Comments on lines that follow each other are one text."""
    first, lines = 0, [""]
    for number, line in enumerate(text.split("\n"), 1):
        if (comment := _COMMENT.search(line)) is None:
            continue
        if number != first + len(lines):
            yield first, "\n".join(lines)
            first, lines = number, []
        lines.append(comment[1])
    yield first, "\n".join(lines)


def tracked(root: Path = ROOT) -> list[str]:
    """Pages and modules of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md", "*.py"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = sorted(set(listed.stdout.splitlines()) - set(SKIPPED))
    return [path for path in paths if (root / path).is_file()]


@cache
def baseline() -> Mapping[str, int]:
    """How many findings a file may have; other files: none."""
    known: dict[str, int] = json.loads(BASELINE.read_text())
    return known


def above(found: Iterable[Finding], allowed: Mapping[str, int]) -> list[Finding]:
    """Findings of files that have more than they may."""
    listed = list(found)
    counts = Counter(finding.path for finding in listed)
    return [f for f in listed if counts[f.path] > allowed.get(f.path, 0)]


def update(found: Iterable[Finding], allowed: Mapping[str, int]) -> dict[str, int]:
    """The new baseline. Raises ValueError where there are more findings than before."""
    counts = Counter(finding.path for finding in found)
    if counts.total() > sum(allowed.values()):
        text = f"{counts.total()} findings, {sum(allowed.values())} before: it may only fall"
        raise ValueError(text)
    return dict(sorted(counts.items()))


def main() -> int:
    """Check files from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="default: all")
    parser.add_argument("--all", action="store_true", help="also what the baseline allows")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    args = parser.parse_args()
    files = [f for f in args.files if f.endswith((".md", ".py"))] if args.files else tracked()
    found = [one for path in files if path not in SKIPPED for one in findings(path)]
    if args.update:
        try:
            lower = update(found, baseline())
        except ValueError as error:
            sys.exit(str(error))
        BASELINE.write_text(json.dumps(lower, indent=1) + "\n")
        return 0
    shown = found if args.all else above(found, baseline())
    print(*shown, sep="\n", end="\n" if shown else "")
    return 1 if above(found, baseline()) else 0


if __name__ == "__main__":
    sys.exit(main())
