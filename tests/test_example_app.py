"""examples/app.py: a device in an app, against a real server."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from service_kit import OPEN_SOCKETS, live_server, new_device, play, small_settings

ROOT = Path(__file__).parents[1]
pytestmark = OPEN_SOCKETS


def run_app(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The app in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "examples" / "app.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_the_app_takes_part_and_shows_recommendations(tmp_path: Path) -> None:
    """With one other device, through two rounds, to its person's list and budget; started again, it goes on."""
    with live_server(tmp_path, small_settings(terms={"rounds": 2}), tls=True) as live:
        ratings = [part for number in range(6) for part in ("--rate", f"item-{number}={1 + number % 5}")]
        with new_device(tmp_path / "other", seed=1) as other:
            other.join(live.url, ca=live.ca)
            thread = threading.Thread(target=play, args=([other],), daemon=True)
            thread.start()
            first = run_app(str(tmp_path / "store"), live.url, "--ca", str(live.ca), *ratings)
            thread.join(timeout=120)
        again = run_app(str(tmp_path / "store"), live.url, "--ca", str(live.ca), "--rate", "item-9=5")
    assert first.returncode == 0, first.stderr
    assert "round 2 of 2: reported" in first.stdout
    assert "spent so far" in first.stdout
    assert "spent so far" in again.stdout
    assert "reported" not in again.stdout


@pytest.mark.parametrize(("rating", "code"), [("1=9", "parameter"), ("1=5", "unreachable")])
def test_errors_are_shown_with_their_code(rating: str, code: str, tmp_path: Path) -> None:
    """A rating off the scale; a server that is not there."""
    done = run_app(str(tmp_path / "store"), "http://127.0.0.1:9", "--rate", rating, "--patience", "0")
    assert done.returncode == 0, done.stderr
    assert f"[{code}]" in done.stdout
    assert "9" not in done.stdout.partition("]")[2].replace("127.0.0.1:9", "")
