"""Serves the login page, which exchanges a token for a cookie."""

from collections.abc import Iterable

from aiohttp import web

from gpuwarden.access import COOKIE, LOGIN_PATH, LOGOUT_PATH, OWN_PATH
from gpuwarden_dashboards.http import html
from gpuwarden_dashboards.templates import Templates

_NOT_TAKEN = {
    "malformed": "This is not a gpuwarden token: tokens begin with gw_read_ or gw_admin_.",
    "unknown": "This collector does not know the token, or it was revoked.",
    "guesses": "Too many wrong tokens from this address: wait a minute.",
    "expired": "This token has expired.",
    "scope": "This token may not read: use one with scope read, edit or admin.",
}


class LoginPage:
    """GET /login. `why` says why the last token was refused.

    After a link from another site the browser does not send its cookie: the page loads itself once more,
    with `again`, and then the cookie is sent.
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get(LOGIN_PATH, self._show)]

    async def _show(self, request: web.Request) -> web.Response:
        why, after = request.query.get("why", ""), request.query.get("next", "/")
        has_token = COOKIE in request.cookies
        if "again" in request.query and has_token and not why and OWN_PATH.fullmatch(after):
            return web.Response(status=303, headers={"Location": after})
        content = self._templates.render(
            "login.html",
            path=LOGIN_PATH,
            out_path=LOGOUT_PATH,
            next=after,
            wrong=_NOT_TAKEN.get(why, "The token was not accepted.") if why else "",
            is_logged_in=has_token,
            comes_again=not (has_token or why or "again" in request.query),
        )
        return html(content)
