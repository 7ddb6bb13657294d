"""Loads the server's certificate, and replaces it while connections stay open."""

import hashlib
import logging
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.files import Mark, mark_of
from gpuwarden.lifecycle import StartError

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger(__name__)

ENDS_SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The parts of a certificate that the collector uses."""

    ends_at: datetime
    names: tuple[str, ...]
    """DNS names and addresses that it is valid for."""
    fingerprint: str
    """`sha256:` and the hexadecimal hash of its DER form."""


def certificate_of(path: Path) -> Certificate:
    """Read the first certificate of a PEM file. Raises ValueError: one line with the path."""
    from cryptography import (
        x509,  # not at the top: it takes 8 MiB, which a collector without TLS saves
    )

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: the file has no PEM certificate") from error
    return described(found)


def described(certificate: "x509.Certificate") -> Certificate:
    """The parts of a certificate that the collector uses."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        names: tuple[str, ...] = ()
    else:
        dns = extension.value.get_values_for_type(x509.DNSName)
        addresses = extension.value.get_values_for_type(x509.IPAddress)
        names = (*dns, *map(str, addresses))
    digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    return Certificate(certificate.not_valid_after_utc, names, f"sha256:{digest}")


class ServerTls:
    """The TLS context of the server. `reload` reads the files again if they have changed.

    A handshake uses the current certificate; open connections keep theirs.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises StartError."""
        self._cert, self._key = cert, key
        self._marks = self._file_marks()
        try:
            self._current, self.certificate = _loaded(cert, key)
        except ValueError as error:
            raise StartError(f"{error}: see tls_cert and tls_key") from error
        self.context, _ = _loaded(cert, key)
        self.context.sni_callback = self._use_current

    def _use_current(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = self._current

    def _file_marks(self) -> tuple[Mark | None, Mark | None]:
        return mark_of(self._cert), mark_of(self._key)

    def reload(self) -> None:
        """Read the files again if they have changed. If they are invalid, log it once and keep the old certificate."""
        marks = self._file_marks()
        if marks == self._marks:
            return
        self._marks = marks
        try:
            self._current, self.certificate = _loaded(self._cert, self._key)
        except ValueError as error:
            log.warning(
                "the new certificate is invalid; the old one stays in use",
                extra={"why": str(error)},
            )
            return
        log.info("new certificate", extra={"ends_at": self.certificate.ends_at.isoformat()})

    def warn_if_it_ends(self, now: datetime) -> None:
        """Log a warning if the certificate has expired or expires soon."""
        left = self.certificate.ends_at - now
        if left > ENDS_SOON:
            return
        extra = {
            "file": str(self._cert),
            "ends_at": self.certificate.ends_at.isoformat(),
            "remedy": "gpuwarden collector init --renew, or renew it with your authority",
        }
        if left <= timedelta(0):
            log.error("the certificate has expired; agents keep their batches", extra=extra)
        else:
            log.warning("the certificate expires soon", extra=extra)


def _loaded(cert: Path, key: Path) -> tuple[ssl.SSLContext, Certificate]:
    certificate = certificate_of(cert)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password here OpenSSL would ask for that of an encrypted key on the terminal.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        what = (
            "the key does not match the certificate"
            if error.reason == "KEY_VALUES_MISMATCH"
            else None
        )
        what = what or "the file has no PEM key without a password"
        raise ValueError(f"{key}: {what}") from error
    except OSError as error:
        raise ValueError(f"{key}: {error.strerror}") from error
    return context, certificate
