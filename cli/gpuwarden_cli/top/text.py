"""Fits untrusted text into terminal cells: no control characters, wide characters count as two."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gpuwarden_cli.output import text_width
from gpuwarden_cli.top.braille import ASCII_CELLS

BARS = "▁▂▃▄▅▆▇█"
_ASCII: dict[int, int | str] = {
    **str.maketrans("▁▂▃▄▅▆▇█…–°▲▼�·▾▸├└│←→×", "._-=+*##.-o^v?.v>|`|<>x"),
    **ASCII_CELLS,
}


class TextSpan(NamedTuple):
    """A piece of a line; `style`: a name of `theme.STYLES`."""

    text: str
    style: str = ""


Line = tuple[TextSpan, ...]


@lru_cache(4096)
def clean(text: str) -> str:
    """The text without control and combining characters."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata  # every command loads this module, and ASCII does not need it

    composed = unicodedata.normalize("NFC", text)
    return "".join(
        c if c.isprintable() else "�"
        for c in composed
        if unicodedata.category(c) not in ("Mn", "Me")
    )


def fitted(text: str, width: int, *, is_right: bool = False) -> str:
    """The text in exactly `width` cells; … marks a cut."""
    text = clean(text)
    if (gap := width - text_width(text)) >= 0:
        return " " * gap + text if is_right else text + " " * gap
    if width < 1:
        return ""
    kept, room = [], width - 1
    for c in text:
        room -= text_width(c)
        if room < 0:
            break
        kept.append(c)
    cut = "".join(kept) + "…"
    return cut + " " * (width - text_width(cut))


def folded(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at spaces, with the indent of the text."""
    text = clean(text)
    if text_width(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    lines, line = [], indent
    for word in text.split():
        while text_width(word) > width - len(indent) > 0:
            head = fitted(word, width - len(indent) + 1).rstrip().removesuffix("…")
            if line.strip():
                lines.append(line)
            lines.append(indent + head)
            word, line = word[len(head) :], indent
        gap = " " if line.strip() else ""
        if text_width(line + gap + word) > width and line.strip():
            lines.append(line)
            line, gap = indent, ""
        line += gap + word
    return [*lines, line]


def sparkline(values: Sequence[float | None], top: float | None = None, bottom: float = 0.0) -> str:
    """A bar for each value from `bottom` to `top` (None: the largest value); a space for None."""
    known = [value for value in values if value is not None]
    if not known:
        return " " * len(values)
    high = max(known) if top is None else top
    span = high - bottom
    last = len(BARS) - 1
    return "".join(
        " "
        if value is None
        else BARS[round(min(max((value - bottom) / span, 0.0), 1.0) * last) if span > 0 else 0]
        for value in values
    )


def ascii_only(text: str) -> str:
    """The text in ASCII, for other terminals."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()
