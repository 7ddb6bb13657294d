"""Asking a collector, and what a person reads when that fails."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwarden.access import Scope, Token
from gpuwarden_client.http import CallError, ask, call


def test_a_refusal_is_the_collectors_own_sentence(answering) -> None:
    answering(400, {"error": "Table gpu does not exist", "status": 400})
    with pytest.raises(CallError, match="^Table gpu does not exist$"):
        ask("select * from gpu")


def test_a_refusal_without_a_sentence_names_the_status(answering) -> None:
    answering(502, b"<html>proxy</html>")
    with pytest.raises(CallError, match="/v1/sql answered 502 Bad Gateway"):
        ask("select 1")


def test_something_else_that_answers_is_not_a_collector(answering) -> None:
    answering(200, b"hello")
    with pytest.raises(CallError, match="does not answer like a gpuwarden collector"):
        ask("select 1")


def test_nobody_there_is_said_with_what_to_do(monkeypatch) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GPUWARDEN_URL", f"http://127.0.0.1:{sock.getsockname()[1]}")
        with pytest.raises(
            CallError, match=r"\(connection refused\): start one with `gpuwarden up`"
        ):
            ask("select 1")


def test_the_token_of_the_environment_is_shown_and_no_redirect_is_followed(
    monkeypatch, tmp_path
) -> None:
    """A redirect may lead anywhere; the token goes to the collector alone, and it alone is believed."""
    token = Token.new(Scope.READ)
    seen = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Authorization"]))
            self.send_response(302 if self.path == "/v1/rules" else 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args) -> None:
            """Say nothing."""

    path = tmp_path / "token"
    path.write_text(token.text)
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("GPUWARDEN_TOKEN_FILE", str(path))
        with pytest.raises(CallError, match="redirects to '/elsewhere', which is not followed"):
            call("GET", "/v1/rules", url=url)
        other = Token.new(Scope.READ)
        monkeypatch.setenv("GPUWARDEN_TOKEN", other.text)
        assert call("GET", "/v1/silences", url=url) == {}
        server.shutdown()
    assert seen == [
        ("/v1/rules", f"Bearer {token.text}"),
        ("/v1/silences", f"Bearer {other.text}"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("GPUWARDEN_TOKEN", "hunter2", "GPUWARDEN_TOKEN: this is not a gpuwarden token"),
        ("GPUWARDEN_TOKEN_FILE", "/no/file", "/no/file: the token cannot be read"),
        ("GPUWARDEN_CA", "/no/file", "GPUWARDEN_CA = /no/file: no readable certificate"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(monkeypatch, name, value, says) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(CallError, match=f"^{says}") as caught:
        call("GET", "/v1/rules", url="https://127.0.0.1:1")
    assert "hunter2" not in str(caught.value)
