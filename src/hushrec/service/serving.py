"""Sockets: binding, TLS, and an orderly end."""

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import uvicorn
from cryptography import x509
from fastapi import FastAPI

from hushrec.errors import ParameterError
from hushrec.service.connections import Connections

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


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address, before anything else is made or changed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends at once where it sees TCP
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ParameterError(
            f"--host and --port must be a free address of this machine, got {host}:{port} ({error.strerror})."
        ) from None
    return bound


def check_certificate(certificate: Path, key: Path) -> None:
    """Refuses files that are no certificate and key, or do not belong together."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError):
        raise ParameterError(
            f"--tls-cert and --tls-key must be readable PEM files that belong together, got {certificate} and {key}."
        ) from None


def make_server(app: FastAPI, tls: tuple[Path, Path] | None = None, *, head_seconds: float = 30) -> uvicorn.Server:
    """A server to `run`: until SIGINT or SIGTERM, then it lets requests in flight end, and tells those that wait."""
    connections = Connections(head_seconds)
    config = uvicorn.Config(
        connections.watched(app),
        http=connections.protocol(),
        ws="none",
        ssl_certfile=None if tls is None else tls[0],
        ssl_keyfile=None if tls is None else tls[1],
        access_log=False,  # it would hold addresses
        proxy_headers=False,
        log_config=None,
        server_header=False,
        backlog=4096,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    if tls is not None:
        config.load()
        assert config.ssl is not None
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = _Server(config, app.state.stop_waiting)
    app.state.is_stopping = lambda: server.should_exit  # streams without an end look at it
    return server


class _Server(uvicorn.Server):
    """Tells those that wait for a round before it waits for them."""

    def __init__(self, config: uvicorn.Config, stop_waiting: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop_waiting = stop_waiting

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_waiting()
        await super().shutdown(sockets)


def self_signed(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate for trying things out; devices must be given it as their CA.

    Made anew when it is missing, or of no use any more: expired, or for another host.
    """
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if not (key.exists() and _is_good(certificate, host)):
        folder.mkdir(parents=True, exist_ok=True)
        _write_certificate(certificate, key, host)
    return certificate, key


def _is_good(certificate: Path, host: str) -> bool:
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    return found.not_valid_after_utc > datetime.datetime.now(datetime.UTC) and _name_of(host) in named


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_certificate(certificate: Path, key: Path, host: str) -> None:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hushrec self-signed")])
    now = datetime.datetime.now(datetime.UTC)
    names = [_name_of("localhost"), _name_of("127.0.0.1"), _name_of(host)]
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
