"""Tokens and certificates for collectors that ask for them."""

import ssl
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from gpuwarden.access import Scope, Token
from gpuwarden.clock import ManualClock
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry


@pytest.fixture
def grant(data_dir: Path, clock: ManualClock) -> Callable[..., Token]:
    """Make a token in the collector's file: `grant(Scope.INGEST, node="n1")`."""

    def granted(scope: Scope, **more: Any) -> Token:
        token = Token.new(scope)
        entry = TokenEntry(token.id, scope, token.digest, clock.now(), **more)
        edit(data_dir / NAME, lambda book: (book.with_entry(entry), None))
        return token

    return granted


@pytest.fixture
def bearer() -> Callable[[Token], dict[str, str]]:
    return lambda token: {"Authorization": f"Bearer {token.text}"}


class Certified:
    """A certificate on disk by an authority of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key, self.ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.issue()

    def issue(self, *names: str, ends_at: datetime | None = None) -> None:
        """Put another certificate in the place of the one that is there."""
        made = self.authority.issue_cert(*(names or ("127.0.0.1", "localhost")), not_after=ends_at)
        made.private_key_pem.write_to_path(str(self.key))
        self.cert.unlink(missing_ok=True)
        for blob in made.cert_chain_pems:
            blob.write_to_path(str(self.cert), append=True)

    @property
    def settings(self) -> dict[str, Path]:
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_ca": self.ca}

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))


@pytest.fixture
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    return Certified(tmp_path_factory.mktemp("tls"))  # type: ignore[return-value]
