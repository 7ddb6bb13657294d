"""Makes OpenSSL trust the certificate authorities of the host, for the paths of all distributions.

OpenSSL reads the folder that was set when it was built. In bundles that is the folder of Debian and Ubuntu,
which other distributions do not use. Sources: ca-certificates(8) of Debian, update-ca-trust(8) of Red Hat,
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
    """Set SSL_CERT_FILE, unless it is set or OpenSSL finds certificates in `folder`."""
    if environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR") or _has_links(folder):
        return
    found = next((path for path in files if path.is_file()), None)
    if found is not None:
        environ["SSL_CERT_FILE"] = str(found)


def _has_links(folder: Path) -> bool:
    """Whether the folder has certificates named by the hash of their subject, as OpenSSL needs them."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(entry.name.endswith(".0") for entry in entries)
    return False
