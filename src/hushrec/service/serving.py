"""Sockets: binding, TLS, time limits on connections, and an orderly end."""

import asyncio
import datetime
import ipaddress
import os
import ssl
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from hushrec.errors import ParameterError

SHUTDOWN_SECONDS = 10
KEEP_ALIVE_SECONDS = 120
CERTIFICATE_DAYS = 30


def check_binding(host: str, *, tls: bool, insecure: bool) -> None:
    """Plain HTTP stays on this machine unless the operator says otherwise."""
    if not (tls or insecure or is_loopback(host)):
        raise ParameterError(
            f"plain HTTP must bind to a loopback address, got {host}. "
            "Give --tls-cert and --tls-key, or --insecure behind a proxy that encrypts."
        )


def is_loopback(host: str) -> bool:
    """Whether an address never leaves this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_server(
    app: FastAPI,
    *,
    host: str,
    port: int,
    certificate: Path | None = None,
    key: Path | None = None,
    head_seconds: float = 30,
) -> uvicorn.Server:
    """A server to `run`: until SIGINT or SIGTERM, then it lets requests in flight end."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_timed_protocol(head_seconds),
        ws="none",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        access_log=False,  # it would hold addresses
        log_config=None,
        server_header=False,
        backlog=4096,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    if certificate is not None:
        config.load()
        assert config.ssl is not None
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = uvicorn.Server(config)
    app.state.is_stopping = lambda: server.should_exit  # streams without an end look at it
    return server


def _timed_protocol(seconds: float) -> type[H11Protocol]:
    """Closes a connection whose next request does not arrive whole in time: half-open ones, and slow heads."""

    class TimedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None:
                self._await_head()
            super().data_received(data)
            if getattr(self.cycle, "response_complete", True) is False:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._deadline = self.loop.call_later(seconds, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return TimedProtocol


def self_signed(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate for trying things out, made anew when it is missing; devices must be given it as their CA."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if not (certificate.exists() and key.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        _write_certificate(certificate, key, host)
    return certificate, key


def _write_certificate(certificate: Path, key: Path, host: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hushrec self-signed")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = secret.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_secret(key, private)
    certificate.write_bytes(built.public_bytes(encoding))


def write_secret(path: Path, content: bytes) -> None:
    """A file that only its owner can read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
