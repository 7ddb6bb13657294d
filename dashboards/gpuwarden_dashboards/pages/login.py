"""Serves the login page, which exchanges a token for a cookie."""

from collections.abc import Iterable
from urllib.parse import urlencode

from aiohttp import web

from gpuwarden.access import COOKIE, LOGIN_PATH, LOGOUT_PATH, OWN_PATH, SIGN_IN_PATH
from gpuwarden_dashboards.http import html
from gpuwarden_dashboards.templates import Templates

_NOT_TAKEN = {
    "malformed": "This is not a gpuwarden token: tokens begin with gw_read_ or gw_admin_.",
    "unknown": "This collector does not know the token, or it was revoked.",
    "guesses": "Too many wrong tokens from this address: wait a minute.",
    "expired": "This token has expired.",
    "sso_groups": "You are signed in, but none of your groups may use this collector: ask who runs it.",
    "sso_provider": "The sign-in service cannot be asked now; the collector's log says why.",
    "sso_refused": "The sign-in service did not sign you in.",
    "sso_over": "This sign-in was used already or took too long: sign in again.",
    "sso_file": "The collector cannot write its file of tokens; its log says why.",
    "groups": "None of your groups may use this collector: ask who runs it.",
    "team": "The team of this token is gone: ask who runs this collector.",
    "scope": "This token may not read: use one with scope read, edit or admin.",
}


class LoginPage:
    """GET /login. `why` says why the last token was refused.

    After a link from another site the browser does not send its cookie: the page loads itself once more,
    with `again`, and then the cookie is sent.
    """

    def __init__(self, templates: Templates, has_sign_in: bool = False) -> None:
        """`has_sign_in`: whether there is single sign-on."""
        self._templates = templates
        self._has_sign_in = has_sign_in

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
            sign_in_path=f"{SIGN_IN_PATH}?{urlencode({'next': after})}"
            if self._has_sign_in
            else "",
            wrong=_NOT_TAKEN.get(why, "The token was not accepted.") if why else "",
            is_logged_in=has_token,
            comes_again=not (has_token or why or "again" in request.query),
        )
        return html(content)
