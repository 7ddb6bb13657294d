"""Splits a query into EXPLAIN, if it begins with that, and the explained statement. Pure.

`Statement.sql` is what runs: an EXPLAIN that is written here, before the very text that the guard checks. So
if the beginning is misread, the query is refused or explained in another way, but no unchecked text runs.
"""

import re
from dataclasses import dataclass

# DuckDB turns all these into blanks before it parses the text.
_BLANK = "[ \t\n\f\r\u00a0\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff]"
_NAME_GOES_ON = r"(?![\w$])"
_ANALYZE = f"ANALY[ZS]E{_NAME_GOES_ON}"
_FORMAT = f"FORMAT{_BLANK}++(?:'[a-z]+'|[a-z]+)"
_OPTION = f"(?:{_ANALYZE}|{_FORMAT})"
# Possessive quantifiers (++, *+), so that a long text that nearly matches does not take longer.
_GAP = re.compile(rf"(?:{_BLANK}|--[^\r\n]*+|/\*.*?\*/)*+", re.DOTALL)
_START = re.compile(f"(?:{_BLANK}|;)*+")
_WORD = re.compile(r"[A-Za-z_]\w*+")
_EXPLAIN = re.compile(f"EXPLAIN{_NAME_GOES_ON}", re.IGNORECASE)
_ANALYZED = re.compile(_ANALYZE, re.IGNORECASE)
_OPTIONS = re.compile(
    rf"\({_BLANK}*+({_OPTION}(?:{_BLANK}*+,{_BLANK}*+{_OPTION})*+){_BLANK}*+\)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A query in two parts."""

    word: str
    """Its first word, in capitals; "" if it does not begin with a word."""
    explain: str
    """EXPLAIN and its options, rewritten; "" if it is not EXPLAIN."""
    select: str
    """The rest of the original text, which the guard checks."""

    @property
    def sql(self) -> str:
        """The text to run."""
        return self.explain + self.select


def split(sql: str) -> Statement:
    """The parts of a query."""
    at = _begin(sql)
    word = _WORD.match(sql, at)
    named = word[0].upper() if word else ""
    match = _EXPLAIN.match(sql, at)
    if match is None:
        return Statement(named, "", sql)
    explain, at = "EXPLAIN ", _after(_GAP, sql, match.end())
    if analyzed := _ANALYZED.match(sql, at):
        explain, at = "EXPLAIN ANALYZE ", analyzed.end()
    elif options := _OPTIONS.match(sql, at):
        explain, at = f"EXPLAIN ({_options(options[1])}) ", options.end()
    return Statement(named, explain, sql[at:])


def _begin(sql: str) -> int:
    """The position of the first statement, after empty ones."""
    at = -1
    following = 0
    while at != following:
        at, following = following, _after(_START, sql, _after(_GAP, sql, following))
    return at


def _after(pattern: re.Pattern[str], sql: str, at: int) -> int:
    match = pattern.match(sql, at)
    return match.end() if match else at


def _options(written: str) -> str:
    options = [match[0] for match in re.finditer(_OPTION, written, re.IGNORECASE)]
    forms = [re.findall("[a-z]+", option, re.IGNORECASE)[-1] for option in options]
    named = [f for f in forms if f.upper() not in ("ANALYZE", "ANALYSE")]
    return ", ".join(["ANALYZE"] * (len(named) < len(options)) + [f"FORMAT {f}" for f in named])
