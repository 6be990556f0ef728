"""Time limits that uvicorn lacks: for receiving the head of a request, and for a client that does not read its reply.

A `Connection` wraps uvicorn's protocol object and passes every event on to it. It relies only on the interfaces of
asyncio and ASGI, not on uvicorn's internals (docs/decisions/0013-connections.md): uvicorn's option `http` accepts any
subclass of `asyncio.Protocol`, and the ASGI scope of a request has the client's address.
"""

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

Client = tuple[str, int]  # address and port


class Connections:
    """The open connections. A client has `seconds` to send a request's head, and as long to resume reading a reply."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.open: dict[Client, Connection] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the `asyncio.Protocol` class that uvicorn instantiates for each connection."""
        connections = self

        class Timed(Connection):
            def __init__(self, **given: Any) -> None:
                super().__init__(H11Protocol(**given), connections)

        return Timed

    def watched(self, app: ASGIApp) -> ASGIApp:
        """Return the application, wrapped so that each connection learns when its reply begins and ends."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            client = scope.get("client")
            connection = None if client is None else self.open.get((client[0], client[1]))
            if connection is None:
                await app(scope, receive, send)
                return
            connection.begin_reply()
            try:
                await app(scope, receive, send)
            finally:
                connection.is_replying = False

        return serve


class Connection(asyncio.Protocol):
    """A protocol that forwards every event to uvicorn's protocol, and closes the connection at a time limit."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self.is_replying = False
        self._awaited_head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._client: Client = tuple(transport.get_extra_info("peername")[:2])
        self._connections.open[self._client] = self
        self._inner.connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._awaited_head is None and not self.is_replying:
            self._await_head()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def begin_reply(self) -> None:
        """Stop the time limit for the request's head, which has arrived completely."""
        self.is_replying = True
        _cancel(self._awaited_head)
        self._awaited_head = None

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read its reply."""
        self._inner.pause_writing()
        self._unread = self._after(self._transport.abort)

    def resume_writing(self) -> None:
        self._inner.resume_writing()
        _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._awaited_head)
        _cancel(self._unread)
        self._connections.open.pop(self._client, None)
        self._inner.connection_lost(exc)

    def _await_head(self) -> None:
        self._awaited_head = self._after(self._transport.close)

    def _after(self, end: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._connections.seconds, end)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
