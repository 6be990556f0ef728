"""What is in deploy/: units that systemd accepts, a proxy that devices can join through, manifests that tools read."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from contextlib import ExitStack
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_kit import Zygote
from proxy_kit import DEPLOY, NEEDS_NGINX, is_open, proxy
from service_kit import OPEN_SOCKETS, get, held_port, live_server, new_device, small_settings, wait_for

from hushrec.cli.serve import serve

pytestmark = OPEN_SOCKETS


@NEEDS_NGINX
def test_devices_join_and_report_through_the_proxy(tmp_path: Path) -> None:
    """TLS ends at nginx; long polls, reports and receipts pass; admin routes are refused from other machines."""
    folder = tmp_path / "nginx"
    settings = small_settings(terms={"rounds": 2}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, proxy(folder, live.url) as (address, authority):
        with new_device(tmp_path / "device") as device:
            device.join(address, ca=authority)
            assert [device.step(wait=20) for _ in range(2)] == ["reported", "reported"]
        assert live.count("reports", kind="stored") == 2
        denied = (DEPLOY / "nginx.conf").read_text("utf-8")
        assert re.search(r"location ~ \^/\(metrics\|v1/admin\) \{\s+allow 127\.0\.0\.1;\s+deny all;", denied)


@NEEDS_NGINX
def test_a_proxy_spreads_devices_over_workers_and_does_without_one_that_ends(tmp_path: Path, database: str) -> None:
    """Both workers receive reports of the first rounds (one false alarm in 130,000); after one ends, the other does."""
    settings = small_settings(terms={"rounds": 8}, rounds={"min_devices": 3})
    folder = tmp_path / "nginx"
    with ExitStack() as stack:
        one = stack.enter_context(live_server(tmp_path, settings, database=database))
        devices = [stack.enter_context(new_device(tmp_path / f"device-{n}", seed=n)) for n in range(3)]
        with live_server(tmp_path, settings, database=database) as two:
            address, authority = stack.enter_context(proxy(folder, one.url, two.url))
            for device in devices:
                device.join(address, ca=authority)
            for _ in range(6):
                assert [device.step(wait=20) for device in devices] == ["reported"] * 3
            stored = [live.count("reports", kind="stored") for live in (one, two)]
            assert sum(stored) == 18
            assert min(stored) > 0
        for _ in range(2):
            assert [device.step(wait=20) for device in devices] == ["reported"] * 3
        assert [device.budget()["rounds"] for device in devices] == [8] * 3


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["hushrec.service", "hushrec-worker@.service"])
def test_systemd_accepts_the_units(tmp_path: Path, name: str) -> None:
    """`systemd-analyze verify` complains only of the program, which is not installed here."""
    unit = tmp_path / name.replace("@", "@8471")
    text = (DEPLOY / name).read_text("utf-8")
    assert "/opt/hushrec/.venv/bin/hushrec serve" in text
    unit.write_text(text.replace("/opt/hushrec/.venv/bin/hushrec", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert complaints == []


def manifest() -> list[Any]:
    """Return the objects of deploy/kubernetes.yaml."""
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))


def compose() -> Any:
    """Return the content of deploy/compose.yaml."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def commands() -> dict[str, list[str]]:
    """Return all that follows `hushrec serve` in the files of deploy/."""
    found = {}
    for path in DEPLOY.glob("*.service"):
        (line,) = re.findall(r"^ExecStart=\S+ serve (.*)$", path.read_text("utf-8"), re.MULTILINE)
        found[path.name] = line.split()
    (container,) = manifest()[0]["spec"]["template"]["spec"]["containers"]
    found["kubernetes.yaml"], found["compose.yaml"] = container["args"], compose()["services"]["hushrec"]["command"]
    return found


def test_commands_are_ones_that_serve_understands() -> None:
    """Every option is an option of `hushrec serve`, and several workers have PostgreSQL."""
    from command import run

    known = run("serve", "--help").out
    assert len(commands()) == 4
    for name, words in commands().items():
        assert all(word in known for word in words if word.startswith("--")), name
        database = words[words.index("--database") + 1]
        assert database.startswith("sqlite" if name == "hushrec.service" else "postgresql"), name


def test_the_commands_start_servers_that_are_ready(tmp_path: Path, database: str) -> None:
    """Each command as written, except folders, hosts, ports and databases; those with PostgreSQL share one database."""
    for name in ("items.csv", "server.toml"):
        (tmp_path / name).write_text("id,title\n1,Film\n" if name == "items.csv" else "[terms]\nexpected_devices = 3\n")
    (container,) = manifest()[0]["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": signature(serve).parameters["port"].default}]
    with ExitStack() as stack:
        zygote = Zygote(tmp_path)
        stack.callback(zygote.close)
        for name, words in commands().items():
            port = stack.enter_context(held_port())
            kept = database if name != "hushrec.service" else f"sqlite:///{tmp_path}/server.sqlite"
            changed = {"--host": "127.0.0.1", "--port": str(port), "--database": kept, "--workers": "1"}
            changed["--state-dir"] = str(tmp_path / name)
            given = [word.replace("/etc/hushrec", str(tmp_path)) for word in words if word != "serve"]
            given = [changed.get(before, word) for before, word in pairwise(["", *given])]
            given += [] if "--port" in given else ["--port", str(port)]
            pid = zygote.ask(serve=given)["pid"]
            stack.callback(lambda pid=pid: zygote.ask(reap=pid))  # type: ignore[misc]
            stack.callback(os.kill, pid, signal.SIGKILL)
            wait_for(lambda port=port: is_open(port))  # type: ignore[misc]
            ready = container["readinessProbe"]["httpGet"]["path"]
            assert get(f"http://127.0.0.1:{port}{ready}").status_code == 200, name


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_knows_every_field_of_the_manifest() -> None:
    """kubectl decodes the objects without a cluster, and prints them without the fields that it does not know."""
    orders = {"Deployment": ("set", "env", "CHECKED=1"), "Service": ("set", "selector", "app=hushrec")}
    for given in manifest():
        command = ["kubectl", *orders[given["kind"]], "--local", "-f", "-", "-o", "json"]
        done = subprocess.run(command, input=yaml.safe_dump(given), capture_output=True, text=True, check=True)
        assert missing(given, json.loads(done.stdout)) == []
        assert missing({**given, "spec": {**given["spec"], "surplus": 1}}, json.loads(done.stdout)) == [".spec.surplus"]


def missing(given: Any, found: Any, place: str = "") -> list[str]:
    """Return the fields of the first object that the second lacks or has with another value."""
    if isinstance(given, dict) and isinstance(found, dict):
        return [gap for key in given for gap in missing(given[key], found.get(key), f"{place}.{key}")]
    if isinstance(given, list) and isinstance(found, list) and len(given) <= len(found):
        return [gap for n, entry in enumerate(given) for gap in missing(entry, found[n], f"{place}[{n}]")]
    return [] if given == found else [place]


def test_the_compose_file_has_what_its_services_name() -> None:
    """Volumes are declared, and the file of the image exists."""
    services, volumes = compose()["services"], compose()["volumes"]
    assert set(services) == {"database", "hushrec", "proxy"}
    mounted = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", ())]
    assert {name for name in mounted if not name.startswith(".")} == set(volumes)
    assert (DEPLOY.parent / services["hushrec"]["build"]["dockerfile"]).exists()


def has_compose() -> bool:
    """Return whether docker has its compose command."""
    found = shutil.which("docker")
    return found is not None and subprocess.run([found, "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
def test_docker_compose_accepts_its_file() -> None:
    """`docker compose config` needs no daemon."""
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    subprocess.run(command, check=True, env=os.environ | {"DATABASE_PASSWORD": "x"})


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
