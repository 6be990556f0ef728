"""`hushrec device`, `hushrec serve` and `hushrec fleet` as a shell runs them."""

import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from command import run
from masked_kit import PHASES, catalogue, masked_settings
from service_kit import OPEN_SOCKETS, PATIENCE, held_port, live_server, new_device, small_settings

from hushrec.cli.app import counted
from hushrec.cli.serve import _notices
from hushrec.data.items import list_items
from hushrec.device.calls import Job
from hushrec.device.session import NO_ROUND, Session
from hushrec.service import serving
from hushrec.service.settings import Settings
from hushrec.service.setup import renew_admin_token
from hushrec.service.storage import Storage
from hushrec.service.stored import load_run

pytestmark = OPEN_SOCKETS

ROOT = Path(__file__).parents[1]


def test_a_person_takes_part_from_the_shell(tmp_path: Path) -> None:
    """Commands init, rate, import, join, recommend, budget, rotate-key, leave and forget."""
    store = ("--store", tmp_path / "ann")
    assert run("device", "init", *store, "--rate", "item-1=5", "--rate", "item-2=1").code == 0
    before = run("device", "budget", *store).out
    assert ("masked: epsilon 8, least_cohort 3" in before, "gradient" in before) == (True, False)  # of no protocol yet
    assert run("device", "rate", "item-3", "4", *store).code == 0
    assert run("device", "rate", "item-3", "--remove", *store).code == 0
    (tmp_path / "own.csv").write_text("item,rating\nitem-4,2\nitem-5,5\n")
    assert "2 ratings are stored" in run("device", "import", tmp_path / "own.csv", *store).err
    (tmp_path / "all.csv").write_text("user,item,rating\nann,item-6,3\nann,item-7,4\nbob,item-8,1\n")
    assert "2 ratings are stored" in run("device", "import", tmp_path / "all.csv", "--user", "ann", *store).err
    settings = small_settings(terms={"rounds": 3}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings, tls=True) as live:
        first = run("device", "join", live.url, "--ca", live.ca, "--rounds", "1", *store)
        assert (first.code, first.err.endswith("1 round reported\n")) == (0, True), first.err
        assert "the key was replaced" in run("device", "rotate-key", *store).err
        rest = run("device", "join", *store)
        assert "2 rounds reported; the run is over" in rest.err
        shown = json.loads(run("device", "recommend", "-n", "2", "--json", *store).out)["items"]
        assert len(shown) == 2
        assert "Item-" in run("device", "recommend", "-n", "1", *store).out
        assert "spent epsilon 8 of 8, 3 rounds" in run("device", "budget", *store).out
        assert json.loads(run("device", "budget", "--raise-to", "16", "--json", *store).out)["limit"] == 16
        assert "has left the run" in run("device", "leave", *store).err
    assert run("device", "forget", "--yes", *store).code == 0
    assert not (tmp_path / "ann").exists()


def test_the_own_epsilon_is_shown_with_its_delta(tmp_path: Path) -> None:
    """After init with 1, in a run of 8; then 2; and 16, of which the run costs 8 at most."""
    store = ("--store", tmp_path / "ann")
    assert run("device", "init", *store, "--epsilon", "1").code == 0
    before = json.loads(run("device", "budget", "--json", *store).out)
    assert (before["own_epsilon"], before["own_delta"]) == (1, None)
    with live_server(tmp_path, masked_settings(3), items=catalogue()) as live:
        said = run("device", "join", live.url, "--rounds", "0", *store).err
        assert "At most ε = 8 (δ = 1e-06)" in said
        assert "ε = 1 (δ = 1e-06)" in said
        shown = run("device", "budget", "--epsilon", "2", *store).out
        assert "ε = 2 (δ = 1e-06)" in shown
        assert all("(delta" in line for line in shown.splitlines() if "epsilon " in line and "--epsilon" not in line)
        found = json.loads(run("device", "budget", "--epsilon", "16", "--json", *store).out)
        assert (found["own_epsilon"], found["own_delta"]) == (8, 1e-6)


def test_exported_ratings_can_be_imported_again(tmp_path: Path) -> None:
    """A person backs up the ratings, because the store itself must not be copied."""
    assert run("device", "init", "--store", tmp_path / "ann", "--rate", "a,b=5", "--rate", "2=1.5").code == 0
    exported = run("device", "export", "--store", tmp_path / "ann").out
    assert exported.splitlines()[0] == "item,rating"
    (tmp_path / "ann.csv").write_text(exported)
    assert run("device", "init", "--store", tmp_path / "new").code == 0
    assert run("device", "import", tmp_path / "ann.csv", "--store", tmp_path / "new").code == 0
    assert run("device", "export", "--store", tmp_path / "new").out == exported


@pytest.mark.parametrize(("number", "words"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds")])
def test_one_of_a_kind_is_not_called_many(number: int, words: str) -> None:
    """Commands print the singular for one thing."""
    assert counted(number, "round") == words
    assert counted(1, "rating is", "ratings are") == "1 rating is"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rate", "x"], "either a rating or --remove"),
        (["rate", "x", "9"], "from 1 to 5"),
        (["join"], "server must be given"),
        (["recommend"], "has not joined a server"),
        (["leave"], "has not joined a server"),
        (["init"], "must not hold a store already"),
        (["budget", "--raise-to", "-1"], "--raise-to) must be at least"),
        (["budget", "--epsilon", "-1"], "hushrec: epsilon must be at least 0, got -1"),
        (["budget", "--epsilon", "nan"], "hushrec: epsilon must be a number"),
        (["import", "missing.csv"], "must be a readable file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    """The exit code is 1, and the sentence says what to do."""
    new_device(tmp_path / "store").close()
    outcome = run("device", *arguments, "--store", tmp_path / "store")
    assert outcome.code == 1
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_store_that_is_not_there_or_options_that_are_wrong_are_one_sentence(tmp_path: Path) -> None:
    """The error comes before any file is created."""
    assert "there is no store in" in run("device", "budget", "--store", tmp_path / "none").err
    assert "scale must be" in run("device", "init", "--scale", "5", "--store", tmp_path / "s").err
    assert "--rate must be" in run("device", "init", "--rate", "5", "--store", tmp_path / "s").err
    assert "epsilon_i must be positive" in run("device", "init", "--epsilon-i", "0", "--store", tmp_path / "s").err
    for least in ("-5", "2"):
        assert "least_cohort must be" in run("device", "init", "--least-cohort", least, "--store", tmp_path / "s").err
    (tmp_path / "three.csv").write_text("a,1,2\n")
    assert "three.csv, line 1" in run("device", "import", tmp_path / "three.csv", "--store", tmp_path / "s").err
    wrong = run("device", "init", "--scale", "0.5,5", "--rate", "1=7", "--store", tmp_path / "s")
    assert (wrong.code, "ratings must be numbers from 0.5 to 5" in wrong.err) == (1, True)
    assert not (tmp_path / "s").exists()


def test_advice_about_a_store_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--store`, the command that the advice gives would erase the default store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for store, option in ((("--store", "hal"), " --store hal"), ((), "")):
        assert f"`hushrec device init{option}`" in run("device", "budget", *store).err
        assert run("device", "init", *store).code == 0
        assert f"`hushrec device forget{option}`" in run("device", "init", *store).err
    asked = run("device", "forget", "--store", "hal")
    assert (asked.code, "Erase all ratings and keys in hal?" in asked.out + asked.err) == (1, True)
    assert Path("hal").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--host", "0.0.0.0"], "loopback"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--tls-cert", "x.pem", "--tls-key", "y.pem"], "--tls-cert"),
        (["--tls-cert", "items.csv", "--tls-key", "items.csv"], "--tls-cert"),
        (["--host", "nowhere.invalid", "--insecure"], "nowhere.invalid"),
        (["--database", "sqlite:///items.csv"], "--database"),
        (["--state-dir", "taken"], "--state-dir"),
        (["--database", "mysql://x"], "--database"),
        (["--database", "postgresql://me@127.0.0.1:1/films"], "got postgresql://me@127.0.0.1:1/films"),
        (["--config", "bad.toml"], "factors must be at least 1, got 0"),
        (
            ["--config", "unknown.toml"],
            "no table [term] in unknown.toml; the tables are [terms], [rounds] and [limits].",
        ),
        (["--config", "above.toml"], "repeats in above.toml belongs in the table [terms]."),
        (["--config", "nowhere.toml"], "there is no setting repeat in nowhere.toml outside the tables"),
        (["--config", "scale.toml"], "[terms] has no option scale; it has run, protocol, model, expected_devices, "),
        (["--config", "dropout.toml"], "[terms] must not have dropout, which is for simulated runs only."),
        (["--config", "bool.toml"], "rounds.automatic in bool.toml must be true or false, got 'maybe'."),
        (["--config", "low.toml"], "rounds.min_devices in low.toml must be at least 1, got 0."),
        (["--config", "half.toml"], "rounds.min_devices in half.toml must be a whole number, got 1.5."),
        (["--config", "table.toml", "--devices", 9], "terms in table.toml must be a table, got 3."),
        (["--config", "fast.toml"], "[limits] in fast.toml has no setting speed; it has requests_per_second, "),
        (["--run", 3], "run must be 1 in a database without a run, got 3."),
        (["--config", "renamed.toml"], "rounds.early_fraction"),
        (["--config", "none.toml"], "none.toml"),
        (["--config", "cap.toml"], "profile_cap"),
        (["--config", "many.toml"], "reports_per_client"),
        (["--config", "slow.toml"], "deadline_seconds in slow.toml is invalid: it must be at most 43200"),
        (["--devices", "10001"], "expected_devices must be at most 10,000"),
        (["--devices", "1"], "expected_devices must be at least 3 under masked"),
        (["--config", "reserve.toml"], "reserve must be at least 0 and below 1, got 1.0. Give the share of the budget"),
        (["--config", "delta.toml"], "delta must be above 0 and at most 1/(10 · 1000 devices) = 0.0001, got 2.0."),
        (["--items", "header.csv"], "header.csv must have at least one item below its header."),
        (["--items", "header.csv", "--model", "mf"], "header.csv must have at least one item below its header."),
    ],
)
def test_a_server_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], named: str
) -> None:
    """It prints one sentence and exits with code 1."""
    monkeypatch.chdir(tmp_path)
    Path("items.csv").write_text("id,title\n1,A\n2,B\n3,C\n")
    Path("bad.toml").write_text("[terms]\nmodel = 'mf'\nfactors = 0\n")
    Path("unknown.toml").write_text("[term]\nfactors = 1\n")
    Path("above.toml").write_text("repeats = 4\n[terms]\n")
    Path("nowhere.toml").write_text("repeat = 4\n")
    Path("scale.toml").write_text("[terms]\nscale = '1,5'\n")
    Path("dropout.toml").write_text("[terms]\ndropout = 0.1\n")
    Path("bool.toml").write_text("[rounds]\nautomatic = 'maybe'\n")
    Path("low.toml").write_text("[rounds]\nmin_devices = 0\n")
    Path("half.toml").write_text("[rounds]\nmin_devices = 1.5\n")
    Path("table.toml").write_text("terms = 3\n")
    Path("fast.toml").write_text("[limits]\nspeed = 1\n")
    Path("renamed.toml").write_text("[rounds]\nquorum = 0.8\n")
    Path("cap.toml").write_text("[terms]\nmodel = 'mf'\nprofile_cap = 3\n")
    Path("many.toml").write_text("[terms]\nmodel = 'mf'\nreports_per_client = 3\n")
    Path("slow.toml").write_text("[rounds]\ndeadline_seconds = 1e9\n")
    Path("reserve.toml").write_text("[terms]\nreserve = 1\n")
    Path("delta.toml").write_text("[terms]\ndelta = 2\n")
    Path("header.csv").write_text("id,title\n")
    Path("taken").mkdir()
    Path("taken/admin-token").write_text("of another run")
    outcome = run("serve", "--items", "items.csv", "--port", "0", *options)
    assert outcome.code == 1
    assert named in outcome.err
    assert outcome.err.count("\n") == 1
    assert Path("taken/admin-token").read_text() == "of another run"
    assert not Path("hushrec-server.sqlite").exists() or "taken" not in options  # no half-made database


def serving_line(folder: Path, *options: str) -> str:
    """Start `hushrec serve`, stop it as soon as it serves, and return what it printed."""
    command = [sys.executable, "-m", "hushrec", "serve", "--items", "items.csv", "--port", "0", *options]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths}
    said = []
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        for line in server.stderr:
            said.append(line)
            if line.startswith("serving") or server.poll() is not None:
                break
        server.terminate()
    return "".join(said)


def test_a_server_counts_the_items_of_its_run_and_tells_of_changed_titles(tmp_path: Path) -> None:
    """A later start with two of the run's three items still serves three, and reports a title that differs."""
    (tmp_path / "items.csv").write_text("id,title\n1,A\n2,B\n3,C\n")
    assert re.search(r"serving 3 items on http://127.0.0.1:\d+ \(protocol masked, model gp\)\n", serving_line(tmp_path))
    storage = Storage(f"sqlite:///{tmp_path / 'hushrec-server.sqlite'}")
    assert storage.at_once(load_run).offer.protocol == "masked"  # without options
    storage.close()
    (tmp_path / "items.csv").write_text("id,title\n1,A\n2,Another\n")
    said = serving_line(tmp_path)
    assert "serving 3 items" in said
    assert "1 title of the file differs" in said
    assert "1 item of this run is missing from the items file" in said


def test_serve_says_how_many_devices_a_round_waits_for_and_what_sets_it(tmp_path: Path) -> None:
    """Under masked, 80 % of the expected devices; under sdcf, the setting `min_devices`."""
    bare = Settings.model_validate({"terms": {"expected_devices": 20}})
    with live_server(tmp_path, bare) as live:
        waits, expects = _notices(live.rounds, 2)
        assert waits.startswith("a round opens when 16 devices are online of the 20 ")
        assert "20 devices are too few" in expects
        assert "without attributes" in expects
    (tmp_path / "exact").mkdir()
    with live_server(tmp_path / "exact", masked_settings(20, terms={"epsilon": math.inf})) as live:
        cautions = [notice for notice in _notices(live.rounds, 2) if "have no noise" in notice]
        assert len(cautions) == 1
        assert "every other device refuses" in cautions[0]
    (tmp_path / "other").mkdir()
    with live_server(tmp_path / "other") as live:
        assert "rounds.min_devices" in _notices(live.rounds, 2)[0]
    (tmp_path / "cohorts").mkdir()
    with live_server(tmp_path / "cohorts", masked_settings(5, rounds={"min_devices": 6})) as live:
        assert _notices(live.rounds, 6)[0].startswith("a round opens when 6 devices are online; rounds.min_devices ")


def test_the_default_limit_lets_a_device_take_part_in_short_rounds() -> None:
    """A round takes a device three requests; with too low a limit two devices spent 35 of 41 s waiting."""
    from hushrec.service.settings import LimitSettings

    limits = LimitSettings()
    rounds, requests = 100, 3
    assert (rounds * requests - limits.burst) / limits.requests_per_second < 5


def test_a_port_in_use_is_one_sentence_and_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with the admin token stays as it is, and no database is created."""
    monkeypatch.chdir(tmp_path)
    Path("items.csv").write_text("id,title\n1,A\n2,B\n3,C\n")
    with serving.bind("127.0.0.1", 0) as taken:
        taken.listen()
        outcome = run("serve", "--items", "items.csv", "--port", taken.getsockname()[1])
    assert outcome.code == 1
    assert "must be a free address of this machine" in outcome.err
    assert os.listdir() == ["items.csv"]


def test_the_admins_token_can_be_replaced(tmp_path: Path) -> None:
    """The new token is accepted, the old one no longer."""
    with live_server(tmp_path) as live:
        old = live.admin_token
    with closing(Storage(f"sqlite:///{tmp_path / 'server.sqlite'}")) as storage:
        new = renew_admin_token(storage)
    for token, status in ((old, 401), (new, 200)):
        with live_server(tmp_path, admin_token=token) as live:
            assert live.admin("GET", "/v1/admin/status").status_code == status


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"step": 0.8}, r"step must stay 0\.4, .* got 0\.8"),
        ({"expected_devices": 60}, "expected_devices must stay 50, .* got 60.*--database and --state-dir of its own"),
    ],
)
def test_terms_that_devices_accepted_cannot_be_changed_later(
    tmp_path: Path, changed: dict[str, float], sentence: str
) -> None:
    """A start with other terms is refused; one that leaves z and H out is not."""
    from hushrec.errors import ParameterError

    with live_server(tmp_path, small_settings(terms={"profile_cap": 20})):
        pass
    with live_server(tmp_path, small_settings()):
        pass
    with (
        pytest.raises(ParameterError, match=sentence),
        live_server(tmp_path, small_settings(terms=changed)),
    ):
        pass


def test_a_catalogue_is_read_in_the_files_order(tmp_path: Path) -> None:
    """Ids and titles; the title of an item without one is its id."""
    (tmp_path / "items.csv").write_text("id,title\nb,Second\na,\n")
    assert list_items(tmp_path / "items.csv") == (["b", "a"], ["Second", "a"])


def test_a_fleet_takes_part_in_two_processes(tmp_path: Path) -> None:
    """Twelve devices with stores report in every round, and measure the error on their held-out ratings."""
    rows = [f"{user},item-{(7 * user + n) % 60},{1 + (user + n) % 5}" for user in range(12) for n in range(10)]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    with live_server(tmp_path, small_settings(terms={"rounds": 3}, rounds={"min_devices": 12})) as live:
        fleet = ("fleet", tmp_path / "ratings.csv", "--server", live.url, "--stores", tmp_path / "stores")
        outcome = run(*fleet, "--processes", "2", "--json")
        assert outcome.code == 0, outcome.err
        done = json.loads(outcome.out)
        assert (done["devices"], done["reports"], live.count("reports", kind="stored")) == (12, 36, 36)
        assert 0 < done["rmse"] < 3
        assert "12 devices made 0 reports" in run(*fleet).err  # the run is over; the stores are found again


def run_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`hushrec ARGUMENTS` in a process of its own."""
    command = [sys.executable, "-m", "hushrec", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_a_person_and_a_fleet_take_part_in_a_masked_run_from_the_shell(tmp_path: Path) -> None:
    """Over TLS, all rounds: one person with `device join`, four made-up devices with `fleet` in two processes."""
    store = ("--store", tmp_path / "ann")
    assert run("device", "init", *store, "--epsilon", "4", "--rate", "item-1=5", "--rate", "item-2=1").code == 0
    rows = [f"{user},item-{(7 * user + n) % 20},{1 + (user + n) % 5}" for user in range(4) for n in range(8)]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    with live_server(tmp_path, masked_settings(5), items=catalogue(), tls=True) as live, ThreadPoolExecutor(1) as pool:
        place = ("--server", live.url, "--ca", live.ca, "--stores", tmp_path / "stores")
        fleet = pool.submit(run_process, "fleet", tmp_path / "ratings.csv", *place, "--processes", "2", "--json")
        joined = run_process("device", "join", live.url, "--ca", live.ca, *store)
        rounds = live.rounds.offer.terms.max_rounds
        assert f"{rounds} rounds reported; the run is over" in joined.stderr, joined.stderr
        done = json.loads(fleet.result(timeout=PATIENCE).stdout)
        assert (done["devices"], done["reports"]) == (4, 4 * rounds * len(PHASES))
        assert 0 < done["rmse"] < 3
        assert len(json.loads(run("device", "recommend", "-n", "2", "--json", *store).out)["items"]) == 2
        spent = json.loads(run("device", "budget", "--json", *store).out)
        assert (spent["rounds"], spent["own_epsilon"]) == (rounds, 4)
        assert f" (delta 1e-06), {rounds} tables sent\n" in run("device", "budget", *store).out
        assert 0 < spent["spent"] <= 4


def test_a_fleet_that_stops_early_finishes_its_round(tmp_path: Path) -> None:
    """With `--rounds 1` it reports in all phases of the first masked round, and in no phase of the second."""
    rows = [f"{user},item-{(7 * user + n) % 20},{1 + (user + n) % 5}" for user in range(4) for n in range(8)]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    with live_server(tmp_path, masked_settings(4), items=catalogue()) as live:
        fleet = ("fleet", tmp_path / "ratings.csv", "--server", live.url, "--stores", tmp_path / "stores")
        outcome = run(*fleet, "--rounds", "1", "--devices", 9, "--json")
        assert outcome.code == 0, outcome.err
        assert f"4 devices, not 9: no more users have ratings to train on; they join {live.url} " in outcome.err
        assert json.loads(outcome.out)["reports"] == 4 * len(PHASES)


def test_a_fleet_shows_its_progress_and_does_not_wait_for_devices_that_are_left_out(tmp_path: Path) -> None:
    """Of five devices, each sum is over four: a line per round says so, and the waits add up to little."""
    rows = [f"{user},item-{(7 * user + n) % 20},{1 + (user + n) % 5}" for user in range(5) for n in range(8)]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    waited: list[float] = []

    def step(session: Session, wait: float = 0) -> Job:
        outcome = yield from whole_step(session, wait)
        waited.append(wait if outcome == NO_ROUND else 0.0)
        return outcome

    whole_step = Session.step
    with (
        live_server(tmp_path, masked_settings(4), items=catalogue()) as live,
        mock.patch.object(Session, "step", step),
    ):
        fleet = ("fleet", tmp_path / "ratings.csv", "--server", live.url, "--stores", tmp_path / "stores")
        outcome = run(*fleet, "--json")
        rounds = live.rounds.offer.terms.max_rounds
        assert json.loads(outcome.out)["reports"] >= 4 * rounds * len(PHASES)
    assert re.findall(r"^round (\d+) of (\d+): 4 devices reported", outcome.err, re.M) == [
        (str(number), str(rounds)) for number in range(1, rounds + 1)
    ]
    assert sum(waited) < rounds * len(PHASES)  # seconds; 5 in every phase when each device waited for its own


def test_a_fleet_with_unknown_items_is_refused_before_a_device_enrols(tmp_path: Path) -> None:
    """The sentence has the number of items, no id, and nothing is stored."""
    rows = [f"{user},item-{20 + n},{1 + (user + n) % 5}" for user in range(5) for n in range(8)]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    with live_server(tmp_path, masked_settings(4), items=catalogue()) as live:
        fleet = ("fleet", tmp_path / "ratings.csv", "--server", live.url, "--stores", tmp_path / "stores")
        for processes in (1, 2):
            outcome = run(*fleet, "--processes", processes)
            assert outcome.code == 1
            assert "must have every rated item of the data, but 4 of 8 are not among its items" in outcome.err
            assert not re.search(r"item-\d", outcome.err)
        assert live.rounds.registry.count_active() == 0
    assert not (tmp_path / "stores").exists()


def test_a_fleet_with_the_stores_of_another_server_is_refused(tmp_path: Path) -> None:
    """The sentence names the option `--stores`."""
    rows = [f"{user},item-{(7 * user + n) % 20},{1 + (user + n) % 5}" for user in range(5) for n in range(8)]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with live_server(tmp_path / name, masked_settings(5), items=catalogue()) as live:
            fleet = ("fleet", tmp_path / "ratings.csv", "--server", live.url, "--stores", tmp_path / "stores")
            outcome = run(*fleet, "--rounds", "0")
            if name == "first":
                assert outcome.code == 0, outcome.err
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].endswith("Give another folder with --stores.")
    assert run(*fleet, "--rounds", "-1").code == 2


def test_a_fleet_gives_up_an_address_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request is not retried for as long as later ones, which outlast a restart of the server."""
    monkeypatch.setattr("hushrec.device.fleet.FIRST_PATIENCE", 0.5)
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(f"{n % 5},{n},{n % 4}" for n in range(40)))
    with held_port() as port:
        outcome = run("fleet", tmp_path / "ratings.csv", "--server", f"http://127.0.0.1:{port}")
    assert outcome.code == 1
    assert "the server could not be reached" in outcome.err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file"),
        (b"\xff", "not UTF-8 text"),
        (b"one\ntwo\n", "a code for each of 5 devices, but .* has 2"),
    ],
)
def test_a_fleet_without_a_code_for_every_device_is_refused(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    """Before a device enrols: one sentence, no traceback, no store, and no code in it."""
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(f"{n % 5},{n},{n % 4}" for n in range(40)))
    if content is not None:
        (tmp_path / "codes").write_bytes(content)
    server = ("--server", "http://127.0.0.1:9", "--invitations", tmp_path / "codes", "--stores", tmp_path / "stores")
    outcome = run("fleet", tmp_path / "ratings.csv", *server)
    assert outcome.code == 1
    assert re.search(f"--invitations must .*{sentence}", outcome.err)
    assert "two" not in outcome.err
    assert not (tmp_path / "stores").exists()


def test_a_fleet_of_pairs_is_refused(tmp_path: Path) -> None:
    """Data without ratings is refused before a store is made."""
    (tmp_path / "pairs.csv").write_text("user,item\n" + "\n".join(f"{user},item-{user % 3}" for user in range(9)))
    outcome = run("fleet", tmp_path / "pairs.csv", "--server", "http://127.0.0.1:9", "--stores", tmp_path / "stores")
    assert outcome.code != 0
    assert "rating values" in outcome.err
    assert not (tmp_path / "stores").exists()


@pytest.mark.soak
def test_the_network_commands_of_the_readme_work_as_they_stand(tmp_path: Path) -> None:
    """Copied into a shell, with `hushrec` in the path, they end in recommendations."""
    section = (ROOT / "README.md").read_text().partition("## Over the network")[2]
    commands = re.findall(r"^\$ (.+)$", section.partition("```\n")[0], re.M)
    assert len(commands) == 7
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "hushrec"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hushrec "$@"\n')
    program.chmod(0o755)
    script = "\n".join([*commands[:1], "server=$!", *commands[1:], "wait $!", "kill $server"])
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": paths}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stderr.count("5 rounds reported; the run is over") == 3
    assert re.search(r"Dune +[1-5]\.\d\d", done.stdout)
