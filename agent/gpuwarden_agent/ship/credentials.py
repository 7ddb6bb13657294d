"""Reads the agent's token for a collector, and the authority that it trusts for TLS."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.access import read_token
from gpuwarden.lifecycle import StartError

log = logging.getLogger(__name__)

_UNKNOWN_CA = frozenset({2, 18, 19, 20, 21})
_EXPIRED, _NOT_YET, _OTHER_NAMES = 10, 9, frozenset({62, 64})
"""Codes of OpenSSL's X509_V_ERR."""


@dataclass(frozen=True, slots=True)
class Access:
    """Paths of the settings; None: no token, the system's authorities."""

    token_file: Path | None = None
    tls_ca: Path | None = None


class Credentials:
    """Contents of the files, which are read again after a collector refused them."""

    def __init__(self, access: Access) -> None:
        """Raises StartError where the token cannot be read."""
        self._access = access
        self._authorization = None
        try:
            self._authorization = self._read()
        except ValueError as error:
            raise StartError(f"{error}: see token_file, or run `gpuwarden enroll`") from error

    @property
    def authorization(self) -> str | None:
        """The header; None: send none."""
        return self._authorization

    def _read(self) -> str | None:
        path = self._access.token_file
        return None if path is None else f"Bearer {read_token(path).text}"

    def reread(self) -> None:
        """Read the token again; if it cannot be read, keep the old one."""
        try:
            self._authorization = self._read()
        except ValueError as error:
            log.warning("the token is not read again", extra={"why": str(error)})

    def tls_context(self) -> ssl.SSLContext:
        """A context that trusts `tls_ca` alone, or else the system's authorities, or those of
        SSL_CERT_FILE and SSL_CERT_DIR. Raises StartError."""
        try:
            context = ssl.create_default_context(cafile=self._access.tls_ca)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror if not isinstance(error, ssl.SSLError) else None
            what = reason or "there is no certificate in PEM form in it"
            raise StartError(
                f"{self._access.tls_ca}: {what}: see tls_ca, or run `gpuwarden enroll`"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        return context


def why_refused(error: ssl.SSLCertVerificationError) -> str:
    """Why the collector's certificate is not trusted, and what to do."""
    code = error.verify_code
    why = f"its certificate is refused: {error.verify_message}"
    if code == _EXPIRED:
        return f"{why}: renew it on the collector's host, `gpuwarden collector init --renew`"
    if code == _NOT_YET:
        return f"{why}: set the clocks right, here and on the collector's host"
    if code in _OTHER_NAMES:
        return f"{why}: use a name that it has in collector_url"
    if code in _UNKNOWN_CA:
        return f"{why}: set tls_ca to the collector's authority, as `gpuwarden enroll` does"
    return why
