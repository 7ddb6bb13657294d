"""Files of access: read at the start in one line, read again when a collector does not like what they held."""

import ssl
from pathlib import Path

import pytest
import trustme

from gpuwarden.access import Scope, Token
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.ship.credentials import Access, Credentials, why_refused
from gpuwarden_agent.ship.transport import open_transport


def test_without_files_nothing_is_shown_and_the_system_is_trusted() -> None:
    credentials = Credentials(Access())
    assert credentials.authorization is None
    assert credentials.tls_context().verify_mode is ssl.CERT_REQUIRED


def test_a_token_is_read_anew_and_one_that_is_gone_is_tried_on(tmp_path: Path) -> None:
    path, first, second = tmp_path / "t", Token.new(Scope.INGEST), Token.new(Scope.INGEST)
    path.write_text(first.text)
    credentials = Credentials(Access(token_file=path))
    assert credentials.authorization == f"Bearer {first.text}"
    path.write_text(second.text)
    credentials.reread()
    assert credentials.authorization == f"Bearer {second.text}"
    path.unlink()
    credentials.reread()
    assert credentials.authorization == f"Bearer {second.text}"


def test_files_that_cannot_be_used_are_one_line_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(StartError, match=f"{path}: the token cannot be read: No such file.*enroll"):
        Credentials(Access(token_file=path))
    with pytest.raises(StartError, match=f"{path}: No such file.*see tls_ca"):
        Credentials(Access(tls_ca=path)).tls_context()
    path.write_text("rubbish")
    with pytest.raises(StartError, match=f"{path}: this is not a gpuwarden token.*see token_file"):
        Credentials(Access(token_file=path))
    with pytest.raises(StartError, match=f"{path}: there is no certificate.*see tls_ca"):
        Credentials(Access(tls_ca=path)).tls_context()


def test_only_the_authority_of_the_file_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    context = Credentials(Access(tls_ca=path)).tls_context()
    assert len(context.get_ca_certs()) == 1
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (10, "gpuwarden collector init --renew"),
        (9, "set the clocks right"),
        (62, "a name that it has"),
        (64, "a name that it has"),
        (18, "set tls_ca"),
        (19, "set tls_ca"),
        (20, "set tls_ca"),
        (23, "revoked"),
    ],
)
def test_each_doubt_has_its_remedy(code: int, says: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "revoked"
    assert says in why_refused(error)


async def test_a_password_in_the_address_and_a_token_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(Token.new(Scope.INGEST).text)
    with pytest.raises(StartError, match="use one of them"):
        async with open_transport("http://u:p@127.0.0.1:1", access=Access(token_file=path)):
            pass
