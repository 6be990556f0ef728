"""The web server: binding its socket, TLS, and graceful shutdown."""

import ipaddress
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn

from hushrec.errors import ParameterError
from hushrec.service.app import make_app
from hushrec.service.certificates import check_certificate
from hushrec.service.connections import Connections
from hushrec.service.monitor import log_event
from hushrec.service.rounds import Rounds

SHUTDOWN_SECONDS = 10
KEEP_ALIVE_SECONDS = 120
BACKLOG = 4096  # most connections that wait to be accepted


def check_binding(host: str, *, tls: bool, insecure: bool) -> None:
    """Raise `ParameterError` if plain HTTP would bind to an address that is not loopback, unless `insecure` is set."""
    if not (tls or insecure or _is_loopback(host)):
        raise ParameterError(
            f"plain HTTP must bind to a loopback address, got {host}. "
            "Give --tls-cert and --tls-key, or --insecure behind a proxy that encrypts."
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to this address; raise `ParameterError` if the address is not free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY on these only
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ParameterError(
            f"--host and --port must be a free address of this machine, got {host}:{port} ({error.strerror})."
            " Choose another."
        ) from None
    return bound


def make_server(rounds: Rounds, tls: tuple[Path, Path] | None) -> uvicorn.Server:
    """Return a server that runs until SIGINT or SIGTERM, then ends long polls and finishes requests in flight.

    `tls` holds the files of a certificate and its private key; None means plain HTTP. A client has
    `limits.body_seconds` to send the head of a request, and the same time to resume reading a reply.
    """
    connections = Connections(rounds.settings.limits.body_seconds)
    config = uvicorn.Config(
        connections.watched(make_app(rounds)),
        http=connections.protocol(),
        ws="none",
        ssl_certfile=None if tls is None else tls[0],
        ssl_keyfile=None if tls is None else tls[1],
        access_log=False,  # an access log would hold network addresses
        proxy_headers=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    if tls is not None:
        config.load()
        assert config.ssl is not None
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        rounds.daily = partial(_renew, config.ssl, tls)
    server = _Server(config, rounds.stop_waiting)
    rounds.end_worker = lambda: setattr(server, "should_exit", True)
    return server


def _renew(context: ssl.SSLContext, tls: tuple[Path, Path]) -> None:
    """Use the certificate and key that the files hold now; log a warning if the certificate expires soon."""
    try:
        warning = check_certificate(*tls)
        context.load_cert_chain(*tls)
    except (ParameterError, OSError) as error:
        warning = str(error)
    if warning is not None:
        log_event("certificate", warning=warning)


class _Server(uvicorn.Server):
    """A uvicorn server that ends all long polls and event streams before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, stop_waiting: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop_waiting = stop_waiting

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_waiting()
        await super().shutdown(sockets)
