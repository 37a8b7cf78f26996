"""The checks of every request before any route sees it, and the headers of every answer.

A page of another site can make a browser send requests to this server: from its own address, which the header Origin
shows, or by a host name that the site points to this machine, which the header Host shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from whence.web.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

DRAINING = 2.0  # seconds for which the rest of a refused request is read
SAFE = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Refused(HTTPException):
    """A refused request: the status of the answer and its sentence."""


class Guard:
    """The outermost layer of the app."""

    def __init__(self, app: App, limits: Limits, hosts: Iterable[str] = (), remote: bool = False) -> None:
        self._app, self._limits, self._remote = app, limits, remote
        self._hosts = {"localhost", "127.0.0.1", "[::1]", *(host.lower() for host in hosts)}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check_host(headers)
            if scope["method"] not in SAFE:
                self._check_origin(headers)
            self._check_length(headers)
            await self._app(scope, self._counted(receive), _with_headers(send))
        except Refused as refusal:
            await self._drained(receive)
            body = json.dumps({"error": refusal.detail}).encode()
            kept = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            kept.append((b"connection", b"close"))
            respond = _with_headers(send)
            await respond({"type": "http.response.start", "status": refusal.status_code, "headers": kept})
            await respond({"type": "http.response.body", "body": body})

    async def _drained(self, receive: Receive) -> None:
        """Read and drop the rest of a refused request; closing the connection earlier would lose the answer, too."""
        size, more = 0, True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAINING):
                while more and size <= 4 * self._limits.body:
                    message = await receive()
                    size += len(message.get("body", b""))
                    more = message.get("more_body", False)

    def _check_host(self, headers: dict[str, str]) -> None:
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name in self._hosts or (self._remote and _is_address(name)):
            return
        raise Refused(421, f"this server does not answer to the host {name[:100]!r}; open it by the address it printed")

    def _check_origin(self, headers: dict[str, str]) -> None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        own = [f"{scheme}://{headers['host'].lower()}" for scheme in ("http", "https")]
        if (origin is not None and origin.lower() not in own) or site not in (None, "same-origin", "none"):
            raise Refused(403, "a page of another site sent this request; only this server's own page may")

    def _check_length(self, headers: dict[str, str]) -> None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self._limits.body:
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused(413, f"a request may have {self._limits.body:,} bytes, and this one has more; send less")

    def _counted(self, receive: Receive) -> Receive:
        """`receive` with limits: a body that is too large or too slow is refused, whatever its headers say."""
        size, ended = 0, False

        async def counted() -> Message:
            nonlocal size, ended
            if ended:  # the next message is that the client has gone, which may take long
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._limits.reading)
            except TimeoutError:
                raise Refused(408, f"the request did not arrive within {self._limits.reading:g} seconds") from None
            size += len(message.get("body", b""))
            if size > self._limits.body:
                raise self._too_large()
            ended = not message.get("more_body", False)
            return message

        return counted


def _is_address(name: str) -> bool:
    """Whether a host is an IP address, which no name server can point elsewhere."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _with_headers(send: Send) -> Send:
    """Send answers with the headers of this module, where the route has not set them itself."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message.get("headers", [])}
            added = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
            message["headers"] = [*message.get("headers", []), *added]
        await send(message)

    return sending
