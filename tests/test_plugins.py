"""Another package brings a protocol, a model, an attack and a data source, by entry points alone."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hushrec import plugins
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.parties import DeviceSide, ServerSide

ROOT = Path(__file__).parents[1]

USED = """
import json, numpy as np, hushrec
from hushrec_example.source import two_camps
from hushrec.audit.run import audit, settings_for
from hushrec.data import load

camps = load("two-camps")
told = hushrec.train(camps, protocol="one-rating", epsilon=200)
robust = hushrec.train(camps, model="robust", protocol="plain", rounds=20, factors=4, compare=False)
found = audit(two_camps(16, 8), settings_for(["plain"], model="mf", rounds=1, factors=2), n_victims=4)
print(json.dumps({
    "users": camps.n_users,
    "budget": told.budget,
    "engine": robust.record["engine"],
    "rmse": [told.metrics["rmse"], robust.metrics["rmse"]],
    "means": told.record["baselines"]["item_mean"]["rmse"],
    "attacks": [one.name for one in found.findings],
    "newcomer": told.recommend_for({}, 2).height,
    "again": hushrec.Recommender(protocol="one-rating", epsilon=3).fit("two-camps").budget["epsilon"],
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the example is installed, as pip installs it, without a network."""
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), "examples/plugin"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    path = os.pathsep.join([str(target), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def test_one_of_each_kind_is_found_and_used(installed: dict[str, str]) -> None:
    """Trained, measured, recommended from and attacked, by names that no module of hushrec knows."""
    done = subprocess.run([sys.executable, "-c", USED], env=installed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["users"] == 60
    assert (found["budget"]["epsilon"], found["budget"]["delta"]) == (200, 0)
    assert found["engine"] == "reference"
    assert found["rmse"][1] < found["means"] - 0.3  # two camps: a personal model sees them, item means do not
    assert found["rmse"][0] < found["means"] + 0.5
    assert "twice popular" in found["attacks"]
    assert (found["newcomer"], found["again"]) == (2, 3)


def test_the_command_line_offers_them(installed: dict[str, str], tmp_path: Path) -> None:
    """In `--help`, and in a run with the protocol's own budget in its own words."""
    command = [sys.executable, "-m", "hushrec", "train"]
    shown = subprocess.run([*command, "--help"], env=installed, capture_output=True, text=True, check=True).stdout
    assert all(name in "".join(shown.split()) for name in ("one-rating(", "robust("))
    options = ["two-camps", "--protocol", "one-rating", "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, *options], env=installed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ε = 4 (δ = 0, 1 round)" in done.stdout


SERVED = """
open_enrolment = true
[terms]
protocol = "one-rating"
model = "means"
epsilon = 200.0
[rounds]
min_devices = 2
early_fraction = 1.0
"""


def test_devices_join_its_protocol_over_the_network(installed: dict[str, str], tmp_path: Path) -> None:
    """Every command is a process of its own, which has imported nothing of the plug-in before.

    Its budget is the operator's choice, so that a device joins only after its person has allowed what the run costs.
    The devices decode its messages, charge its unit and read the ledger again. Where the plug-in is missing, a sentence
    says so.
    """
    (tmp_path / "items.csv").write_text("id,title\nfilm,Film\nbook,Book\n")
    (tmp_path / "server.toml").write_text(SERVED)
    command = [sys.executable, "-m", "hushrec"]
    process: dict[str, Any] = {"cwd": tmp_path, "env": installed, "text": True, "stdout": subprocess.PIPE}

    def device(*words: str) -> str:
        done = subprocess.run([*command, "device", *words], check=False, stderr=subprocess.PIPE, timeout=100, **process)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    serve = [*command, "serve", "--items", "items.csv", "--config", "server.toml", "--port", "0"]
    with subprocess.Popen(serve, stderr=subprocess.STDOUT, **process) as server, ThreadPoolExecutor() as pool:
        try:
            address = next(found[0] for line in server.stdout or () if (found := re.search(r"http://\S+", line)))
            for store in ("anna", "ben"):
                device("init", "--store", store, "--rate", "film=5")
                refused = subprocess.run(
                    [*command, "device", "join", address, "--store", store],
                    check=False,
                    stderr=subprocess.PIPE,
                    **process,
                )
                assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
                assert "this run of one-rating needs a limit of epsilon 200" in refused.stderr
                advice = re.search("`hushrec (device budget --protocol one-rating --raise-to 200)`", refused.stderr)
                assert advice is not None
                device(*advice[1].split()[1:], "--store", store)
            list(pool.map(lambda store: device("join", address, "--store", store), ("anna", "ben")))
        finally:
            server.terminate()
    spent = json.loads(device("budget", "--store", "anna", "--json"))
    assert (spent["spent"], spent["limit"], spent["rounds"]) == (200, 200, 1)
    assert "Book" in device("recommend", "--store", "ben")

    process["env"] = {**installed, "PYTHONPATH": str(ROOT / "src")}
    for words in (("recommend",), ("budget",), ("join",)):
        missing = subprocess.run(
            [*command, "device", *words, "--store", "ben"], check=False, stderr=subprocess.PIPE, **process
        )
        assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
        assert "needs protocol one-rating, which is not installed. Install its package." in missing.stderr
    process["env"] = installed
    device("leave", "--without-server", "--store", "ben")
    process["env"] = {**installed, "PYTHONPATH": str(ROOT / "src")}
    missing = subprocess.run(
        [*command, "device", "budget", "--store", "ben"], check=False, stderr=subprocess.PIPE, **process
    )
    assert "needs the plug-in of unit one-rating, which is not installed. Install its package." in missing.stderr


def test_the_page_lists_what_a_protocol_must_have() -> None:
    """Every abstract method of both sides and of the configured protocol, and no other; two attributes besides."""
    page = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    listed: dict[str, set[str]] = {}
    name = ""
    for row in re.findall(r"^\|(.+)\|$", page.partition("| must have |")[2].partition("6. ")[0], re.MULTILINE):
        cells = row.split("|")
        name = "".join(re.findall(r"`(\w+)`", cells[0])) or name
        listed.setdefault(name, set()).update(re.findall(r"`(\w+)`", cells[1]))
    for side in (DeviceSide, ServerSide, ConfiguredProtocol):
        assert listed[side.__name__] - {"phases"} == set(side.__abstractmethods__), side.__name__


class Broken:
    """An entry point as importlib knows it."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.value, self._error = name, f"strange.{name}", error

    def load(self) -> str:
        if self._error is not None:
            raise self._error
        return "loaded"


def test_a_plugin_that_breaks_or_takes_a_name_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else suffers: a built-in protocol cannot be replaced by installing a package."""
    offered = [Broken("masked"), Broken("new"), Broken("bad", ImportError("no such thing"))]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: {"hushrec.protocols": offered}[group])
    with pytest.warns(RuntimeWarning) as told:
        assert plugins.plugins("protocols", {"masked"}) == {"new": "loaded"}
    assert [str(one.message).split()[1] for one in told] == ["strange.masked", "strange.bad"]
