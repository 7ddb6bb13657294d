"""Decides from the settings whether tokens are asked for, and refuses settings that let strangers in. Pure
but for names that the resolver is asked about.
"""

import ipaddress
import socket
from dataclasses import dataclass

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.settings import CollectorSettings


@dataclass(frozen=True, slots=True)
class Exposure:
    """Who can reach the collector, and what is asked of them."""

    asks_tokens: bool
    is_local: bool
    """Reached from this machine alone, so that a name other than its own in Host is a web page's trick."""


def exposure_of(settings: CollectorSettings) -> Exposure:
    """Raises StartError for settings that would let strangers read along or in."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        raise StartError(f"tls_cert and tls_key belong together: set {missing} as well")
    is_loopback = _is_loopback(settings.host)
    is_open = is_loopback or settings.allow_insecure
    if not is_open and settings.tls_cert is None:
        raise StartError(
            f"host = {settings.host} is open to other machines, and there is no TLS: run"
            " `gpuwarden collector init`, or set tls_cert and tls_key (allow_insecure = true if something"
            " before it does that)"
        )
    asks = settings.require_tokens or not is_open
    return Exposure(asks, is_loopback and not asks and not settings.allow_insecure)


def _is_loopback(host: str) -> bool:
    """Whether every address of that name is this machine's own; a name that nobody knows is not."""
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
