"""Serves scripts and styles under a path with their hash, so that browsers may cache them forever.

All files share one hash: modules import each other by relative paths, so a change of one file changes all
addresses.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PATH = "/assets/{version}/{name}"


@dataclass(frozen=True, slots=True)
class Assets:
    """The files in memory."""

    version: str
    files: dict[str, bytes]

    def path(self, name: str) -> str:
        """Where a page finds a file."""
        if name not in self.files:
            raise KeyError(name)
        return PATH.format(version=self.version, name=name)

    async def serve(self, request: web.Request) -> web.Response:
        """`GET /assets/{version}/{name}`."""
        name = request.match_info["name"]
        content = self.files.get(name)
        # Another version: the page is from another collector.
        if content is None or request.match_info["version"] != self.version:
            raise web.HTTPNotFound
        answer = web.Response(
            body=content,
            content_type=_TYPES[Path(name).suffix],
            charset="utf-8",
            headers={
                "Cache-Control": "public, max-age=31536000, immutable",
                "X-Content-Type-Options": "nosniff",
            },
        )
        answer.enable_compression()
        return answer


def load_assets(folder: Path = _FOLDER) -> Assets:
    """Read them all."""
    files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix in _TYPES}
    digest = sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return Assets(digest.hexdigest()[:16], files)
