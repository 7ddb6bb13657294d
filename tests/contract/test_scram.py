"""SCRAM-SHA-256: the RFC's own example, and a client without the token is refused."""

import base64
import hashlib
import hmac
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.scram import Exchange, ScramError, Verifier


def initial(text: str) -> bytes:
    return b"SCRAM-SHA-256\0" + len(text).to_bytes(4, "big") + text.encode()


def rfc_exchange() -> Exchange:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    exchange = Exchange(Verifier.of("pencil", salt), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    said = exchange.first(initial("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))
    assert said == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    return exchange


FINAL = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p="


def test_the_example_of_rfc_7677_is_answered_as_there() -> None:
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    server = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert rfc_exchange().final((FINAL + proof).encode()) == server


def test_a_proof_with_another_token_is_denied() -> None:
    proof = base64.b64encode(bytes(32)).decode()
    assert rfc_exchange().final((FINAL + proof).encode()) is None


@given(st.binary(max_size=80))
def test_rubbish_is_refused_and_nothing_worse(said: bytes) -> None:
    exchange = rfc_exchange()
    with suppress(ScramError):
        assert exchange.final(said) is None
    with pytest.raises(ScramError):
        Exchange(Verifier.of("x", b"salt"), "nonce").first(said)


@pytest.mark.parametrize(
    "said",
    [
        "p=tls-unique,,n=,r=abc",  # a binding that was not offered
        "n,,n=,r=",
        "n,,n=user",
    ],
)
def test_a_first_message_that_asks_for_more_is_refused(said: str) -> None:
    with pytest.raises(ScramError):
        rfc_exchange().first(initial(said))


def test_a_nonce_of_another_login_is_refused() -> None:
    with pytest.raises(ScramError, match="does not belong"):
        rfc_exchange().final(FINAL.replace("k0,p=", "k1,p=").encode() + base64.b64encode(bytes(32)))


def test_the_stored_verifier_has_postgresqls_form_and_no_password() -> None:
    verifier = Verifier.of("pencil", bytes(16))
    text = str(verifier)
    assert Verifier.parse(text) == verifier
    assert text.startswith("SCRAM-SHA-256$4096:AAAAAAAAAAAAAAAAAAAAAA==$") and "pencil" not in text
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", bytes(16), 4096)
    assert verifier.server_key == hmac.digest(salted, b"Server Key", "sha256")
    with pytest.raises(ValueError, match="no SCRAM verifier"):
        Verifier.parse("md5abc")
