"""nginx with the configuration of deploy/ in front of servers, where it is installed."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from service_kit import wait_for

from hushrec.service import certificates

DEPLOY = Path(__file__).parents[1] / "deploy"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
NEEDS_NGINX = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def proxy(folder: Path, *upstreams: str) -> Iterator[tuple[str, Path]]:
    """nginx with deploy/nginx.conf in front of servers: its address, and the authority to trust."""
    folder.mkdir()
    port, servers = free_port(), " ".join(f"server {upstream.removeprefix('http://')};" for upstream in upstreams)
    authority, certificate, key = certificates.self_signed(folder, ["127.0.0.1"])
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    for old, new in (
        ("server 127.0.0.1:8470;", servers),
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
            wait_for(lambda: is_open(port))
            yield f"https://127.0.0.1:{port}", authority
        finally:
            running.terminate()


def is_open(port: int) -> bool:
    """Whether somebody listens at this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
