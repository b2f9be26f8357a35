"""Access control. Only browsers on this machine get answers, or with `--host`, anyone who has the token.

A page on the internet can make a browser send requests to 127.0.0.1, and under its own host name by DNS rebinding. So
a request must name one of our hosts and must not come from another origin, and following a link never changes anything.
Every answer has strict headers.
"""

from __future__ import annotations

import secrets
from hmac import compare_digest

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.loopback import Hosts, is_foreign

EMPTY = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="  # Plotly adds one empty <style> and fills it by script
POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    f"style-src 'self' '{EMPTY}'",
    "img-src 'self' data: blob:",  # Plotly makes pictures of charts that way
    "media-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
))  # fmt: skip
# The player executes the policy as WebAssembly, which this allows; scripts that are made of text stay forbidden.
PLAYER = "/play"
PLAYER_POLICY = POLICY.replace("script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'")
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware. `token`: None where only this machine can reach the server."""

    def __init__(self, app: ASGIApp, *, host: str = "127.0.0.1", token: str | None = None) -> None:
        self._app, self._token, self._hosts = app, token, Hosts(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if scope["path"] == PLAYER:
                    headers["content-security-policy"] = PLAYER_POLICY
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refusal(Request(scope))
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        headers = request.headers
        host = headers.get("host", "")
        if not self._hosts.include(host):
            return _refuse("this address does not belong to surefoot ui")
        origin = headers.get("origin")
        if is_foreign(host, origin, headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")):
            return _refuse("requests from other pages are refused")
        if request.method not in ("GET", "HEAD") and origin is None:
            return _refuse("a request that does something must come from the page")
        return self._without_token(request)

    def _without_token(self, request: Request) -> Response | None:
        """None if the request carries the token. The printed link is exchanged for a cookie."""
        if self._token is None:
            return None
        cookie = f"surefoot-{request.url.port or 80}"
        if self._fits(request.cookies.get(cookie)) or self._fits(_bearer(request)):
            return None
        if request.method == "GET" and request.url.path == "/" and self._fits(request.query_params.get("token")):
            answer = RedirectResponse("/", status_code=303)
            # Not "strict": after a click on a link in a mail, the browser would withhold the cookie until a reload.
            answer.set_cookie(cookie, self._token, httponly=True, samesite="lax", max_age=30 * 86400)
            return answer
        return _refuse("open the link with ?token=… that `surefoot ui` printed", 401)

    def _fits(self, offered: str | None) -> bool:
        return offered is not None and compare_digest(offered.encode(errors="replace"), (self._token or "").encode())


def _bearer(request: Request) -> str | None:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value if kind.lower() == "bearer" else None


def _refuse(why: str, status: int = 403) -> Response:
    return PlainTextResponse(f"{why}\n", status)


def new_token() -> str:
    return secrets.token_urlsafe(24)
