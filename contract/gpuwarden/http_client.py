"""Opens HTTP addresses for commands and actors. No redirect is followed: requests have tokens, and answers are believed."""

import ssl
import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def opener(
    tls: ssl.SSLContext | None = None, *, uses_proxy: bool = True
) -> urllib.request.OpenerDirector:
    """An opener for which a redirect is an HTTPError. `tls`: None: by the system's authorities. `uses_proxy`: that of
    the environment."""
    handlers: list[urllib.request.BaseHandler] = [
        _NoRedirect(),
        urllib.request.HTTPSHandler(context=tls),
    ]
    if not uses_proxy:
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)
