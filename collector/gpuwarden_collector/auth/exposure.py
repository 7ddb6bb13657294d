"""Decides from the settings whether tokens are required, and refuses unsafe settings.

Pure, except that it resolves the host name.
"""

import ipaddress
import socket
from dataclasses import dataclass

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.settings import CollectorSettings


@dataclass(frozen=True, slots=True)
class Exposure:
    """Who can reach the collector, and whether they need a token."""

    asks_tokens: bool
    is_local: bool
    """Only this machine can reach it, so that another name in Host means DNS rebinding by a web page."""


def exposure_of(settings: CollectorSettings) -> Exposure:
    """Raises StartError for settings that would expose data or admit clients without tokens."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        raise StartError(f"tls_cert and tls_key belong together: set {missing} as well")
    is_loopback = _is_loopback(settings.host)
    is_open = is_loopback or settings.allow_insecure
    if not is_open and settings.tls_cert is None:
        raise StartError(
            f"host = {settings.host} is open to other machines, and there is no TLS: run"
            " `gpuwarden collector init`, or set tls_cert and tls_key (allow_insecure = true if a proxy in front"
            " of it does TLS)"
        )
    asks = settings.require_tokens or not is_open
    return Exposure(asks, is_loopback and not asks and not settings.allow_insecure)


def _is_loopback(host: str) -> bool:
    """Whether each address of the name is a loopback address; False for an unknown name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(
            host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return False
    return all(ipaddress.ip_address(str(a[4][0]).partition("%")[0]).is_loopback for a in found)
