"""A scripted HTTP server in the place of a collector."""

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.collector.conftest import data_dir, empty_store  # noqa: F401  fixtures


@pytest.fixture(autouse=True)
def _log_as_before():
    """Commands that run here set up the log of the process."""
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


@pytest.fixture
def answering(monkeypatch):
    """`answering(status, document)` makes GPUWARDEN_URL a server that says that; gives its log."""
    servers = []

    def start(status: int, document: object) -> list[dict]:
        asked: list[dict] = []

        class Scripted(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"] or 0)
                sent = json.loads(self.rfile.read(length)) if length else {}
                asked.append({"path": self.path, **sent})
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.do_POST()

            def do_DELETE(self) -> None:
                self.do_POST()

            def log_message(self, *args) -> None:
                """Say nothing on stderr, which tests read."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        monkeypatch.setenv("GPUWARDEN_URL", f"http://127.0.0.1:{server.server_port}")
        return asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
