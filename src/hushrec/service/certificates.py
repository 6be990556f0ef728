"""TLS certificates: a private certificate authority for `--self-signed`, and checks of an operator's certificate.

Devices trust the *authority*, `certificate.pem`, which is valid for ten years and which hushrec never replaces. At
every start the authority signs a fresh certificate for the names of this server, so that devices still connect after a
restart, a change of the host name or an expiry.
"""

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hushrec.errors import ParameterError

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 397  # about the longest validity that browsers accept; renewed at every start
WARNING_DAYS = 30
_CLOCK_SKEW = datetime.timedelta(hours=1)


def check_certificate(certificate: Path, key: Path) -> str | None:
    """Raise `ParameterError` unless the files hold a certificate that has not expired, and its private key.

    Return a warning if the certificate expires in less than `WARNING_DAYS` days, else None.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ssl.SSLError, ValueError):
        raise ParameterError(
            f"--tls-cert and --tls-key must be readable PEM files of a certificate and its key, got {certificate} and"
            f" {key}. Check both files."
        ) from None
    left = until - _now()
    if left.total_seconds() <= 0:
        raise ParameterError(f"--tls-cert must be valid today: {certificate} expired on {until:%Y-%m-%d}. Renew it.")
    if left.days < WARNING_DAYS:
        return f"{certificate} expires on {until:%Y-%m-%d}, in {left.days} days; devices refuse it from then on."
    return None


def self_signed(folder: Path, names: Sequence[str]) -> tuple[Path, Path, Path]:
    """Write a fresh certificate and its key into `folder`, for a server with these host names and addresses.

    Return the paths of the authority, the certificate and its key. If `folder` has no authority, one is made. If the
    authority has expired, or one of its two files is missing or damaged, raise `ParameterError`: a new authority is not
    made, because devices that trust the old one would refuse it.
    """
    authority, authority_key = folder / "certificate.pem", folder / "certificate-key.pem"
    if not authority.exists() and not authority_key.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _make_authority(authority, authority_key)
    try:
        issuer = x509.load_pem_x509_certificate(authority.read_bytes())
        secret = serialization.load_pem_private_key(authority_key.read_bytes(), password=None)
        if not isinstance(secret, ec.EllipticCurvePrivateKey) or secret.public_key() != issuer.public_key():
            raise ValueError
    except (OSError, ValueError):
        raise ParameterError(
            f"{authority} and {authority_key} must be the certificate and key of the authority that devices trust, but"
            " one file is missing or damaged, or they do not belong together. Restore both files from a backup; or"
            " remove both, and give every device the new authority with --ca."
        ) from None
    if issuer.not_valid_after_utc <= _now():
        raise ParameterError(
            f"{authority} must be valid today, but expired on {issuer.not_valid_after_utc:%Y-%m-%d}. Remove {authority}"
            f" and {authority_key}, start again, and give every device the new authority with --ca."
        )
    certificate, key = folder / "server.pem", folder / "server-key.pem"
    extensions = [
        (x509.SubjectAlternativeName([_name_of(name) for name in names]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(secret.public_key()), False),
    ]
    _issue("hushrec server", CERTIFICATE_DAYS, extensions, certificate, key, (issuer, secret))
    return authority, certificate, key


def certified_names(host: str, extra: Sequence[str]) -> list[str]:
    """Return the names and addresses under which devices may reach a server that binds to `host`.

    They are `localhost`, 127.0.0.1, the `extra` names that the operator gives, and `host`. If `host` means every
    address (0.0.0.0 or ::), the result has this machine's name and addresses instead of `host`.
    """
    names = ["localhost", "127.0.0.1", *extra]
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    return list(dict.fromkeys([*names, *(_own_names() if everywhere else [host])]))


def _own_names() -> list[str]:
    """Return this machine's host name, and the addresses to which that name resolves."""
    name = socket.gethostname()
    try:
        addresses = [str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None)]
    except OSError:
        addresses = []
    return [name, *addresses]


def _make_authority(certificate: Path, key: Path) -> None:
    # Of the nine usages of a key, the authority's key has two: signing certificates and signing revocation lists.
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    extensions = [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)]
    _issue("hushrec authority", AUTHORITY_DAYS, extensions, certificate, key)


def _issue(
    name: str,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    certificate: Path,
    key: Path,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
) -> None:
    """Generate a private key and its certificate, and write them to the paths `key` and `certificate`.

    The certificate is for the common name `name` and valid for `days` days. It is signed with the key of `issuer`, a
    pair (certificate, key), or with the new key if `issuer` is None. `extensions` are pairs (extension, whether it is
    critical).
    """
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _CLOCK_SKEW)
        .not_valid_after(_now() + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    built = builder.sign(secret if issuer is None else issuer[1], hashes.SHA256())
    pem = serialization.Encoding.PEM
    write_secret(key, secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    certificate.write_bytes(built.public_bytes(pem))


def _name_of(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file with mode 0600; the mode is set before any content is written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
