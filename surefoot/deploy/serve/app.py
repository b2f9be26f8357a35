"""The paths of the server, as a plain ASGI application: a framework would cost as much as the policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, cast

from surefoot import __version__
from surefoot.deploy.serve.batching import Batcher
from surefoot.deploy.serve.metrics import Metrics
from surefoot.deploy.serve.questions import Reader, Refusal
from surefoot.loopback import Hosts, is_foreign

if TYPE_CHECKING:
    from surefoot.deploy.light_agent import LightAgent

Message: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = dict[bytes, bytes]

METHODS = {"/": "GET", "/health": "GET", "/metrics": "GET", "/act": "POST"}
JSON, TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
PATIENCE = 10.0  # seconds that a request may take to arrive


@dataclass(frozen=True)
class Limits:
    """What one request may have."""

    bytes: int = 8 * 2**20
    observations: int = 256


class Gone(Exception):
    """The client has left before its request was complete."""


class App:
    """Answers for one agent. `facts`: what `/` says about it."""

    def __init__(self, agent: LightAgent, facts: dict[str, object], limits: Limits) -> None:
        self.limits, self.metrics, self.hosts = limits, Metrics(), Hosts()
        self.reader = Reader(agent.program, limits.observations)
        self.batcher = Batcher(agent, limits.observations)
        self.facts = {"surefoot": __version__, **facts, "limits": vars(limits)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]  # uvicorn is told to send nothing else
        begin = perf_counter()
        headers = dict(cast("list[tuple[bytes, bytes]]", scope["headers"]))
        status, kind, close = 200, JSON, False
        try:
            content, kind = await self._answered(scope, headers, receive)
        except Refusal as refusal:
            status, content = refusal.status, _json({"error": str(refusal)})
            close = status in (408, 413)  # the rest of the request is not read
        except Gone:
            return
        await _send(send, status, kind, content, close=close, allow=METHODS.get(str(scope["path"])))
        self.metrics.count(status, perf_counter() - begin)

    async def _answered(self, scope: Message, headers: Headers, receive: Receive) -> tuple[bytes, bytes]:
        """(content, its type)."""
        path, method = str(scope["path"]), scope["method"]
        self._require_own(headers)
        if path not in METHODS:
            raise Refusal(404, f"there is no such path; there are {', '.join(METHODS)}")
        if method != METHODS[path] and not (method == "HEAD" and METHODS[path] == "GET"):
            raise Refusal(405, f"{path} takes {METHODS[path]}")
        if path == "/act":
            question = self.reader.read(await self._body(headers, receive))
            answer = await self.batcher.answer(question)
            self.metrics.observations += len(question.rows)
            return _json(answer), JSON
        if path == "/metrics":
            return self.metrics.text(self.batcher.passes).encode(), TEXT
        return _json({"status": "ok"} if path == "/health" else self.facts), JSON

    def _require_own(self, headers: Headers) -> None:
        host, *others = (
            None if (value := headers.get(name)) is None else value.decode("latin-1")
            for name in (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode")
        )
        if not self.hosts.include(host or ""):
            raise Refusal(403, "this address does not belong to surefoot serve")
        if is_foreign(host or "", *others):
            raise Refusal(403, "requests from web pages of others are refused")

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole request, unless it is too large or too slow."""
        most = self.limits.bytes
        too_large = Refusal(413, f"the request has more than the {most:,} bytes that are taken")
        claimed = headers.get(b"content-length", b"0")
        if not claimed.isdigit() or int(claimed[:20]) > most:
            raise too_large
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(PATIENCE):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    part = message.get("body", b"")
                    assert isinstance(part, bytes)
                    size += len(part)
                    if size > most:
                        raise too_large
                    parts.append(part)
                    more = message.get("more_body", False) is True
        except TimeoutError:
            raise Refusal(408, f"the request did not arrive within {PATIENCE:g} seconds") from None
        return b"".join(parts)


def _json(value: object) -> bytes:
    return ENCODER.encode(value).encode()


async def _send(
    send: Send, status: int, kind: bytes, content: bytes, *, close: bool = False, allow: str | None = None
) -> None:
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(content)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    ]
    if close:
        headers.append((b"connection", b"close"))
    if status == 405 and allow:
        headers.append((b"allow", allow.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
