"""`gpuwarden token`: made once, shown once, listed without secrets, ended."""

import json
import re
from pathlib import Path

import pytest

from gpuwarden.access import Denied, Scope, Token
from gpuwarden.clock import SystemClock
from gpuwarden_cli.main import main
from gpuwarden_collector.auth.authority import AuthorityFiles, init
from gpuwarden_collector.auth.token_file import NAME, load
from gpuwarden_collector.auth.token_store import Granted


@pytest.fixture
def token(tmp_path: Path, capsys):
    """`token("create", ...)`: exit code and what was said on both streams."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["token", *map(str, words), "--data-dir", str(tmp_path)])
        return code, *capsys.readouterr()

    return run


def verdict(folder: Path, text: str, need: Scope):
    return load(folder / NAME).judged(text, need, SystemClock().now())


def test_a_token_is_shown_once_and_works(token, tmp_path: Path) -> None:
    code, out, err = token("create", "--scope", "ingest", "--node", "n1", "--expires", "90d")
    made = Token.parse(out.strip())
    assert code == 0 and made.text not in err
    granted = verdict(tmp_path, made.text, Scope.INGEST)
    assert isinstance(granted, Granted)
    assert granted.entry.node == "n1"
    assert (granted.entry.expires_at - granted.entry.created_at).days == 90
    _, listed, _ = token("list")
    assert made.id in listed and "n1" in listed
    assert made.text.rpartition("_")[2] not in listed


def test_a_token_in_a_file_is_shown_to_nobody(token, tmp_path: Path) -> None:
    path = tmp_path / "reader"
    code, out, _ = token("create", "--scope", "read", "--out", path)
    made = Token.parse(path.read_text().strip())
    assert code == 0 and made.text not in out and made.id in out
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--scope", "ingest"), "--scope ingest needs --node NAME or --any-node"),
        (("--scope", "read", "--node", "n1"), "no other scope has them"),
        (("--scope", "ingest", "--node", "v 1"), "--node: 'v 1' cannot be the name of a node"),
        (("--scope", "read", "--expires", "soon"), "--expires soon: say how long as 30m"),
        (("--scope", "read", "--expires", "999999999d"), "at most 100 years"),
    ],
)
def test_a_wrong_call_makes_nothing(token, tmp_path: Path, words, says: str) -> None:
    code, out, err = token("create", *words)
    assert (code, out, says in err, err.count("\n")) == (2, "", True, 1)
    assert load(tmp_path / NAME).entries == []


def test_a_rotated_token_has_a_successor_and_a_grace(token, tmp_path: Path) -> None:
    old = Token.parse(token("create", "--scope", "read")[1].strip())
    new = Token.parse(token("rotate", old.id, "--grace", "0s")[1].strip())
    assert isinstance(verdict(tmp_path, new.text, Scope.READ), Granted)
    assert verdict(tmp_path, old.text, Scope.READ).why == "expired"
    assert token("rotate", "nope")[0] == 2


def test_a_revoked_token_is_gone(token, tmp_path: Path) -> None:
    made = Token.parse(token("create", "--scope", "admin")[1].strip())
    assert token("revoke", made.id)[0] == 0
    assert isinstance(verdict(tmp_path, made.text, Scope.READ), Denied)
    code, _, err = token("revoke", made.id)
    assert code == 2 and f"there is no token {made.id}" in err


def test_an_enrolment_is_one_line_with_the_token_out_of_the_command(
    token, tmp_path: Path, monkeypatch
) -> None:
    files = AuthorityFiles(tmp_path / "tls")
    made = init(files, ["gpu.example"], SystemClock().now())
    for name in ("cert", "key", "ca"):
        monkeypatch.setenv(f"GPUWARDEN_COLLECTOR_TLS_{name.upper()}", str(getattr(files, name)))
    monkeypatch.setenv("GPUWARDEN_COLLECTOR_HOST", "0.0.0.0")
    _, out, _ = token("enrolment", "--valid", "2h", "--uses", "3")
    found = re.fullmatch(
        r"GPUWARDEN_TOKEN=(\S+) gpuwarden enroll --collector https://gpu\.example:8750"
        r" --ca-fingerprint (sha256:[0-9a-f]{64})\n",
        out,
    )
    assert found and found[2] != made.fingerprint  # the authority's, which stays
    granted = verdict(tmp_path, found[1], Scope.ENROLL)
    assert granted.entry.uses_left == 3
    rows = json.loads(token("list", "--format", "json")[1])
    assert [(r["scope"], r["uses left"]) for r in rows] == [("enroll", 3)]


def test_no_enrolment_is_printed_that_would_be_refused(token, tmp_path: Path) -> None:
    code, out, err = token("enrolment", "--collector", "http://127.0.0.1:8750")
    assert (code, out) == (2, "")
    assert "without --config require no tokens" in err and "gpuwarden collector init" in err
    (tmp_path / "collector.toml").write_text("port = 8750\n")
    code, out, err = token("enrolment", "--config", str(tmp_path / "collector.toml"))
    assert (code, out) == (2, "")
    assert f"{tmp_path / 'collector.toml'} requires no tokens" in err


def test_an_enrolment_without_an_address_says_what_to_do(
    token, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("GPUWARDEN_COLLECTOR_REQUIRE_TOKENS", "true")
    code, _, err = token("enrolment")
    assert code == 2 and "say its address with --collector" in err
    assert token("enrolment", "--collector", "http://x", "--uses", "0")[0] == 2
    code, out, _ = token("enrolment", "--collector", "http://x", "--known-nodes")
    (entry,) = load(tmp_path / NAME).entries
    assert entry.known_nodes
    assert code == 0 and out.endswith("--collector http://x --allow-insecure\n")
