"""The one opener of HTTP addresses against a server that redirects."""

import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwarden.http_client import opener


def test_no_redirect_is_followed_with_any_status_or_method() -> None:
    paths = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(int(self.path[1:]))
            self.send_header("Location", "/200")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for status in (301, 302, 303, 307, 308):
            for body in (None, b""):
                with pytest.raises(urllib.error.HTTPError) as raised:
                    opener().open(f"http://127.0.0.1:{server.server_port}/{status}", body)
                raised.value.close()
                assert raised.value.code == status
        server.shutdown()
    assert "/200" not in paths and len(paths) == 10
