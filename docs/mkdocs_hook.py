"""Adapts pages that are written for a code host to mkdocs, and checks the built site.

Files outside docs/ that pages link to become pages below `repository/`: Markdown as it is, source as a block of code.
So a link is right on the code host and in the site, and the site shows the source of its own version.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
STARTS = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
OUTSIDE = "repository"
LANGUAGES = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".toml": "toml", ".sh": "sh"}
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that make a browser load something, with the attribute that names the address."""
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_ITEM = re.compile(r"(?:- |\d+\. )")
_REMOTE = re.compile(r"(?:https?:)?//")


def slug(heading: str, _separator: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def on_config(config: Any) -> Any:
    """Make anchors as the code host does."""
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/ that pages link to, directly or through such a page."""
    for path in linked_outside():
        uri = uri_of(path)
        if path.suffix == ".md":
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        else:
            files.append(File.generated(config, uri, content=source_page(path)))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site, and indent lists as Python-Markdown wants them."""
    path = path_of(page.file.src_uri)
    if path.suffix != ".md":
        return text
    return "\n".join(
        line if is_code else _LINK.sub(lambda found: _retarget(found[1], path), line)
        for line, is_code in marked(indented(text))
    )


def on_post_build(config: Any) -> None:
    """Refuse a site that loads anything from another host."""
    found = remote_loads(Path(config.site_dir))
    if found:
        raise PluginError("the site loads from other hosts: " + ", ".join(sorted(found)))


def linked_outside() -> list[Path]:
    """Files of the repository outside docs/ that are reached from its pages and the README."""
    seen: set[Path] = set()
    queue = list(STARTS)
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.suffix == ".md":
            queue += [target for target in targets(path) if target.is_file()]
    return sorted(path for path in seen if not path.is_relative_to(DOCS))


def targets(page: Path) -> Iterator[Path]:
    """What a page links to within the repository."""
    for line, is_code in marked(page.read_text()):
        for link in [] if is_code else _LINK.findall(line):
            if target := _target(link, page):
                yield target


def uri_of(path: Path) -> str:
    """Where a file of the repository is in the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    uri = f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"
    return uri if path.suffix == ".md" else f"{uri}.md"


def path_of(uri: str) -> Path:
    """The file of the repository behind a page."""
    if not uri.startswith(f"{OUTSIDE}/"):
        return DOCS / uri
    path = ROOT / uri.removeprefix(f"{OUTSIDE}/")
    return path if path.exists() else path.with_suffix("")


def source_page(path: Path) -> str:
    """A page that shows a source file; search leaves it out."""
    language = LANGUAGES.get(path.suffix, "text")
    fence = "`" * 8
    head = "---\nsearch:\n  exclude: true\n---\n"
    return f"{head}# {path.relative_to(ROOT)}\n\n{fence}{language}\n{path.read_text()}\n{fence}\n"


def marked(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is in a block of code."""
    is_code = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            yield line, True
        else:
            yield line, is_code


def indented(text: str) -> str:
    """What belongs to a list item by two or three spaces, by four."""
    width, lines = 0, []
    for line, is_code in marked(text):
        if (item := _ITEM.match(line)) and not is_code:
            width = len(item[0])
        elif width and line.startswith(" " * width):
            line = f"    {line[width:]}"
        elif line:
            width = 0
        lines.append(line)
    return "\n".join(lines)


def remote_loads(site: Path) -> set[str]:
    """Addresses on other hosts that pages or style sheets load."""
    found = set()
    for page in site.rglob("*.html"):
        reader = _Loads()
        reader.feed(page.read_text())
        found |= {link for link in reader.found if _REMOTE.match(link)}
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        found |= set(re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", text))
    return found


class _Loads(HTMLParser):
    """Collects what the elements of a page load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value = dict(attrs).get(LOADS.get(tag, ""))
        if value:
            self.found.append(value)


def _retarget(link: str, page: Path) -> str:
    target = _target(link, page)
    if target is None or not target.is_file():
        return link  # of another host, or broken: then mkdocs says so
    _, hash_sign, anchor = link.partition("#")
    start = uri_of(page).rpartition("/")[0] or "."
    return relpath(uri_of(target), start) + hash_sign + anchor


def _target(link: str, page: Path) -> Path | None:
    """The file that a link leads to; None: this page, or another host."""
    name = link.partition("#")[0]
    if not name or "://" in name or name.startswith(("/", "mailto:")):
        return None
    target = (page.parent / name).resolve()
    return target if target.is_relative_to(ROOT) else None
