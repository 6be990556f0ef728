"""What is in deploy/: a unit that systemd accepts, a proxy that devices can join through."""

import re
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from service_kit import OPEN_SOCKETS, PATIENCE, live_server, new_device, small_settings

from hushrec.service import certificates

DEPLOY = Path(__file__).parents[1] / "deploy"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = OPEN_SOCKETS


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def proxy(folder: Path, upstream: str) -> Iterator[tuple[str, Path]]:
    """nginx with deploy/nginx.conf in front of a server: its address, and the authority to trust."""
    port = free_port()
    authority, certificate, key = certificates.self_signed(folder, ["127.0.0.1"])
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    for old, new in (
        ("server 127.0.0.1:8470;", f"server {upstream.removeprefix('http://')};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/films.example.pem", str(certificate)),
        ("/etc/ssl/films.example.key", str(key)),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    temporary = "".join(
        f"{name}_temp_path {folder / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "main.conf"
    main.write_text(
        f"daemon off; pid {folder / 'pid'}; error_log stderr; events {{}} http {{ {temporary} access_log off; {text} }}"
    )
    assert NGINX is not None
    command = [NGINX, "-p", str(folder), "-e", "stderr", "-c", str(main)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            until = time.monotonic() + PATIENCE
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
                time.sleep(0.01)
            yield f"https://127.0.0.1:{port}", authority
        finally:
            running.terminate()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_devices_join_and_report_through_the_proxy(tmp_path: Path) -> None:
    """TLS ends at nginx; long polls, reports and receipts pass; the admin's routes do not from elsewhere."""
    folder = tmp_path / "nginx"
    folder.mkdir()
    settings = small_settings(terms={"rounds": 2}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, proxy(folder, live.url) as (address, authority):
        with new_device(tmp_path / "device") as device:
            device.join(address, ca=authority)
            assert [device.step(wait=20) for _ in range(2)] == ["reported", "reported"]
        assert live.monitor.count("reports", kind="stored") == 2
        denied = (DEPLOY / "nginx.conf").read_text("utf-8")
        assert re.search(r"location ~ \^/\(metrics\|v1/admin\) \{\s+allow 127\.0\.0\.1;\s+deny all;", denied)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing to complain about but the program, which is not installed here."""
    unit = tmp_path / "hushrec.service"
    text = (DEPLOY / "hushrec.service").read_text("utf-8")
    assert "/opt/hushrec/.venv/bin/hushrec serve" in text
    unit.write_text(text.replace("/opt/hushrec/.venv/bin/hushrec", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "hushrec.service" in line]
    assert complaints == []


def test_the_units_command_is_one_that_serve_understands() -> None:
    """Every option of the unit is an option of `hushrec serve`."""
    from command import run

    (line,) = re.findall(r"^ExecStart=\S+ serve (.*)$", (DEPLOY / "hushrec.service").read_text("utf-8"), re.MULTILINE)
    known = run("serve", "--help").out
    assert all(option in known for option in re.findall(r"--[a-z-]+", line))


def test_a_server_restored_from_a_backup_goes_on_and_no_device_reports_twice(tmp_path: Path) -> None:
    """The backup is a round behind: the device skips the round that it has reported in, and reports in the next."""
    settings = small_settings(terms={"rounds": 4}, rounds={"min_devices": 1, "automatic": False})
    database = tmp_path / "server.sqlite"
    with new_device(tmp_path / "device") as device:
        with live_server(tmp_path, settings) as live:
            device.join(live.url)
            token = live.admin_token
            live.admin("POST", "/v1/admin/start")
            assert device.step(wait=20) == "reported"
            live.admin("POST", "/v1/admin/close")
            with sqlite3.connect(database) as connection:
                connection.execute(f"VACUUM INTO '{tmp_path / 'backup.sqlite'}'")
            live.admin("POST", "/v1/admin/start")
            assert device.step(wait=20) == "reported"
            port = int(live.url.rpartition(":")[2])
        for leftover in tmp_path.glob("server.sqlite*"):
            leftover.unlink()
        shutil.copy(tmp_path / "backup.sqlite", database)
        with live_server(tmp_path, settings, admin_token=token, port=port) as live:
            live.admin("POST", "/v1/admin/start")  # round 2 again
            assert device.step(wait=0) == "no round"
            live.admin("POST", "/v1/admin/close")
            live.admin("POST", "/v1/admin/start")
            assert device.step(wait=20) == "reported"
