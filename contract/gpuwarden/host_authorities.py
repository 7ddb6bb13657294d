"""Makes OpenSSL trust the authorities of the host, wherever its distribution keeps them.

OpenSSL looks where it was told to when it was built. The one in bundles was told Debian's and Ubuntu's folder,
in which other distributions have nothing. Sources: ca-certificates(8) of Debian, update-ca-trust(8) of Red Hat,
update-ca-certificates(8) of SUSE.
"""

import os
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/etc/ssl/certs")
FILES = (
    Path("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"),  # Red Hat, Fedora, Rocky, Amazon
    Path("/etc/pki/tls/certs/ca-bundle.crt"),  # likewise, older
    Path("/etc/ssl/ca-bundle.pem"),  # SUSE
    Path("/etc/ssl/certs/ca-certificates.crt"),  # Debian, Ubuntu without the folder's links
)


def use_host_authorities(
    environ: MutableMapping[str, str] = os.environ,
    *,
    folder: Path = FOLDER,
    files: Iterable[Path] = FILES,
) -> None:
    """Set SSL_CERT_FILE, unless a person has set it or OpenSSL finds certificates in `folder` by itself."""
    if environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR") or _has_links(folder):
        return
    found = next((path for path in files if path.is_file()), None)
    if found is not None:
        environ["SSL_CERT_FILE"] = str(found)


def _has_links(folder: Path) -> bool:
    """Whether certificates are there by the hash of their subject, as OpenSSL looks for them."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(entry.name.endswith(".0") for entry in entries)
    return False
