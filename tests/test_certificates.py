"""Certificates: what a server makes and checks, and what a device says of one that it cannot trust."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from service_kit import live_server, new_device, wait_for

from hushrec.device.transport import _CERTIFICATE_REASONS
from hushrec.errors import ConnectionFailed, ParameterError
from hushrec.service import certificates


def names_in(path: Path) -> set[str]:
    """Return the names and addresses that a certificate is for."""
    found = x509.load_pem_x509_certificate(path.read_bytes())
    return {str(name.value) for name in found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value}


def test_the_authority_stays_and_certificates_are_renewed(tmp_path: Path) -> None:
    """A restart, or another host name, changes the certificate but not the authority that devices trust."""
    authority, certificate, key = certificates.self_signed(tmp_path, ["films.example"])
    trusted, first = authority.read_bytes(), certificate.read_bytes()
    certificates.self_signed(tmp_path, ["other.example", "127.0.0.1"])
    assert authority.read_bytes() == trusted
    assert certificate.read_bytes() != first
    assert names_in(certificate) == {"other.example", "127.0.0.1"}
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("gone", ["certificate.pem", "certificate-key.pem"])
@pytest.mark.parametrize("content", [None, b"nothing"])
def test_a_damaged_authority_is_refused_and_not_replaced(tmp_path: Path, gone: str, content: bytes | None) -> None:
    """Devices that trust the old authority would refuse a new one."""
    authority, *_ = certificates.self_signed(tmp_path, ["127.0.0.1"])
    (tmp_path / gone).unlink()
    if content is not None:
        (tmp_path / gone).write_bytes(content)
    with pytest.raises(ParameterError, match=r"certificate\.pem"):
        certificates.self_signed(tmp_path, ["127.0.0.1"])
    assert authority.exists() == (gone != "certificate.pem" or content is not None)


def test_a_server_on_every_address_is_certified_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 0.0.0.0: the machine's own name and addresses, and those that the operator gives."""
    monkeypatch.setattr(certificates.socket, "gethostname", lambda: "box")
    found = [(None, None, None, "", ("192.0.2.7", 0))]
    monkeypatch.setattr(certificates.socket, "getaddrinfo", lambda *_: found)
    assert certificates.certified_names("0.0.0.0", ["films.example"]) == [
        "localhost", "127.0.0.1", "films.example", "box", "192.0.2.7",
    ]  # fmt: skip
    assert "0.0.0.0" not in certificates.certified_names("::", [])
    assert certificates.certified_names("films.example", [])[-1] == "films.example"


def test_an_expired_certificate_is_refused_and_one_that_expires_soon_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server does not start with a certificate that every device refuses."""
    _, certificate, key = certificates.self_signed(tmp_path, ["127.0.0.1"])
    assert certificates.check_certificate(certificate, key) is None
    today = certificates._now()
    monkeypatch.setattr(certificates, "_now", lambda: today + datetime.timedelta(days=390))
    warning = certificates.check_certificate(certificate, key)
    assert warning is not None
    assert "7 days" in warning or "6 days" in warning
    monkeypatch.setattr(certificates, "_now", lambda: today + datetime.timedelta(days=400))
    with pytest.raises(ParameterError, match="tls-cert"):
        certificates.check_certificate(certificate, key)


def test_a_server_reads_its_certificate_again_every_day_and_warns_of_its_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewed certificate is used without a restart."""
    monkeypatch.setattr("hushrec.service.app.DAY_SECONDS", 0.05)
    with caplog.at_level("INFO", "hushrec.service"), live_server(tmp_path, tls=True) as live:
        _, certificate, _ = certificates.self_signed(tmp_path, ["127.0.0.1"])
        address = ("127.0.0.1", int(live.url.rpartition(":")[2]))
        wait_for(lambda: ssl.get_server_certificate(address) == certificate.read_text())
        assert "expires on" not in caplog.text
        later = certificates._now() + datetime.timedelta(days=390)
        monkeypatch.setattr(certificates, "_now", lambda: later)
        wait_for(lambda: "server.pem expires on" in caplog.text)


@pytest.mark.parametrize(("days", "code"), [(-400, 10), (400, 9)])
def test_a_device_tells_an_expired_certificate_from_a_wrong_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, code: int
) -> None:
    """Neither error advises to give --ca, which was given."""
    certificates.self_signed(tmp_path, ["127.0.0.1"])  # the authority is valid today
    today = certificates._now()
    monkeypatch.setattr(certificates, "_now", lambda: today + datetime.timedelta(days=days))
    with live_server(tmp_path, tls=True) as live, new_device(tmp_path / "device") as device:
        with pytest.raises(ConnectionFailed) as refused:
            device.join(live.url, ca=live.ca)
        assert str(refused.value) == _CERTIFICATE_REASONS[code][1]


def test_a_device_says_that_a_certificate_is_for_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, and does not advise to give --ca."""
    made = certificates.self_signed
    monkeypatch.setattr(certificates, "self_signed", lambda folder, _: made(folder, ["films.example"]))
    with live_server(tmp_path, tls=True) as live, new_device(tmp_path / "device") as device:
        with pytest.raises(ConnectionFailed) as refused:
            device.join(live.url, ca=live.ca)
        assert str(refused.value) == _CERTIFICATE_REASONS[64][1]


def test_strict_verification_accepts_our_certificates(tmp_path: Path) -> None:
    """Newer Pythons check key identifiers and key usage by default."""
    authority, certificate, key = certificates.self_signed(tmp_path, ["127.0.0.1"])
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    finished = set()
    for _ in range(10):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
                finished.add(side)
            except ssl.SSLWantReadError:
                continue
    assert finished == {client_side, server_side}
