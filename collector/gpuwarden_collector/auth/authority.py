"""Creates a private certificate authority and the collector's certificate.

Nodes trust only the authority, so the certificate can be renewed each year without a change on nodes. The authority's
key stays on the collector's host and signs only the collector's certificate.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuwarden.files import make_folder, write_whole
from gpuwarden_collector.auth.tls import Certificate, certificate_of, described

CA_LASTS = timedelta(days=3653)
SERVER_LASTS = timedelta(days=365)
_BACKDATED = timedelta(hours=1)
"""The clocks of nodes may be behind."""


class AuthorityError(Exception):
    """One line: what is wrong, where, and what to do."""


@dataclass(frozen=True, slots=True)
class AuthorityFiles:
    """Paths of the authority and the certificate."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate: public."""
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """The authority's key: secret."""
        return self.folder / "ca.key"

    @property
    def cert(self) -> Path:
        """The collector's certificate."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """The collector's key."""
        return self.folder / "server.key"


def init(files: AuthorityFiles, names: Sequence[str], now: datetime) -> Certificate:
    """Create an authority and a certificate for `names`, if they do not exist.

    Raises AuthorityError, also if the existing certificate lacks one of `names`.
    """
    try:
        if files.cert.exists():
            return _kept(files, names)
        if not files.ca.exists():
            _make_authority(files, now)
        return _issue(files, names, now)
    except OSError as error:
        raise AuthorityError(f"{error.filename or files.folder}: {error.strerror}") from error


def _kept(files: AuthorityFiles, names: Sequence[str]) -> Certificate:
    try:
        found = certificate_of(files.cert)
    except ValueError as error:
        raise AuthorityError(f"{error}: --renew creates a new one") from error
    if missing := [name for name in names if name not in found.names]:
        raise AuthorityError(
            f"{files.cert} exists and is not for {', '.join(missing)}: --renew with each --name creates another one"
        )
    return found


def renew(files: AuthorityFiles, names: Sequence[str], now: datetime) -> Certificate:
    """Create a new key and certificate with the same authority; `names` empty: those of the old one.

    Raises AuthorityError.
    """
    try:
        names = names or certificate_of(files.cert).names
    except ValueError as error:
        raise AuthorityError(f"{error}: name the collector's host with --name") from error
    try:
        return _issue(files, names, now)
    except OSError as error:
        raise AuthorityError(f"{error.filename or files.folder}: {error.strerror}") from error


def _make_authority(files: AuthorityFiles, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"gpuwarden authority {now:%Y-%m-%d}")]
    )
    usage = _usage(signs_certificates=True)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + CA_LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    make_folder(files.folder)
    write_whole(files.ca_key, _pem(key))
    write_whole(files.ca, certificate.public_bytes(Encoding.PEM), mode=0o644)


def _issue(files: AuthorityFiles, names: Sequence[str], now: datetime) -> Certificate:
    alternatives = [_name(name) for name in dict.fromkeys(names)]
    ca, ca_key = _authority(files)
    if ca.not_valid_after_utc <= now:
        raise AuthorityError(
            f"{files.ca} has expired: move it and {files.ca_key} away, create another one, and enroll the nodes"
            " again"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpuwarden collector")])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        x509.CertificateBuilder(ca.subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(min(now + SERVER_LASTS, ca.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    # The key first: a collector that reads both files in between finds that they do not match, and reads them again.
    write_whole(files.key, _pem(key))
    chain = certificate.public_bytes(Encoding.PEM) + ca.public_bytes(Encoding.PEM)
    write_whole(files.cert, chain, mode=0o644)
    return described(certificate)


def _authority(files: AuthorityFiles) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
    except ValueError as error:
        raise AuthorityError(f"{files.ca}: the file has no PEM certificate") from error
    try:
        key = load_pem_private_key(files.ca_key.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise AuthorityError(f"{files.ca_key}: the file has no PEM key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
        raise AuthorityError(f"{files.ca_key}: this is not the key of {files.ca}")
    return ca, key


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not text.isascii() or not text or any(c in text for c in " /:@,*"):
        raise AuthorityError(f"--name {text}: this is neither a host name nor an address")
    return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
