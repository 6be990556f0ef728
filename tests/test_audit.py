"""The audit: attacks see messages alone, numbers obey what is proved, and everything can be asked for and read."""

import ast
import gc
import json
import math
import types
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from audit_kit import RUNS, problem_of, rated_by, victims_of, watched
from command import run
from parties import report_on

import hushrec.audit.run
from hushrec.audit import canaries, devices, poisoning, selection, sweeps
from hushrec.audit.attacks import Attack
from hushrec.audit.attacks.combined import EXISTENCE
from hushrec.audit.attacks.existence import (
    ConsistentRatings,
    OppositeDirections,
)
from hushrec.audit.attacks.linkage import LinkEnrolments, LinkRounds
from hushrec.audit.attacks.metadata import METADATA, CountFromSelections
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.attacks.value import VALUE
from hushrec.audit.findings import TARGETS, Finding, worst
from hushrec.audit.judge import judge
from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import record
from hushrec.audit.rank_one import trace
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.run import STEPS, Bench, audit, settings_for, silent
from hushrec.audit.selection_rounds import ROUNDS, selection_curve
from hushrec.cli.audit import side_by_side
from hushrec.data.named import load_people
from hushrec.data.ratings import Ratings, Scale
from hushrec.data.synthetic import synthetic
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import Diverged, ParameterError, RunError
from hushrec.models.bpr import PairwiseRanking
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf
from hushrec.protocols.gradient.selection import Selection
from hushrec.report import audits
from hushrec.simulation.training_problem import make_problem

AUDIT = Path(hushrec.audit.__file__).parent
ROOT = Path(__file__).parents[1]


# What an attack can reach -----------------------------------------------------------------------------------------


def reachable(root: object) -> list[object]:
    """Every object that a chain of references leads to; classes, functions and modules are code, and end a chain."""
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, code):
            continue
        seen[id(found)] = found
        waiting += gc.get_referents(found)
        if isinstance(found, np.ndarray) and found.base is not None:
            waiting.append(found.base)
    return list(seen.values())


@pytest.mark.parametrize(("model", "protocol"), RUNS)
def test_an_observation_leads_to_messages_and_public_tables_alone(model, protocol):
    """No client, problem, ledger, draw, permanent bit or truth is reachable from what an attack is given."""
    observation = watched(model, protocol)[1]
    fresh = Observation(*(getattr(observation, entry.name) for entry in fields(observation)))
    ours = {type(found) for found in reachable(fresh) if type(found).__module__.startswith("hushrec")}
    models = {MatrixFactorization, PairwiseRanking}
    assert (
        ours <= {Observation, RatingLevels, ItemVectors, Terms, GradientReport, Plain, Isgld, Sdcf, Selection} | models
    )
    arrays = [found for found in reachable(fresh) if isinstance(found, np.ndarray) and found.dtype.kind == "f"]
    width = fresh.announcements[0].item_vectors.shape[1]
    shapes = {array.shape[1] for array in arrays if array.ndim == 2}
    assert shapes <= {width}  # gradients and item vectors


# What the modules of attacks may import, besides NumPy, SciPy and the standard library.
ATTACKERS_MAY = {
    "arrays", "audit.rating_levels",
    "audit.attacks", "audit.sample", "audit.error_laws", "audit.observation", "audit.own_steps", "audit.partners",
    "audit.machines", "audit.rank_one",
    "audit.rating_grid", "audit.selection", "audit.statistics", "budget.calibrate", "errors", "messages", "models",
    "protocols", "randomness", "scale",
}  # fmt: skip
ATTACKERS = [
    *sorted((AUDIT / "attacks").glob("*.py")),
    *(
        AUDIT / f"{name}.py"
        for name in (
            "sample",
            "error_laws",
            "machines",
            "marking",
            "observation",
            "own_steps",
            "partners",
            "rank_one",
            "rating_grid",
            "selection",
        )
    ),
]


@pytest.mark.parametrize("path", ATTACKERS, ids=lambda path: path.stem)
def test_modules_of_attacks_import_nothing_that_knows_more(path):
    """Clients, problems, engines, data and the truth are out of reach of an attack's code."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name.removeprefix("hushrec.") for name in names if name.startswith("hushrec")}
    assert {
        name for name in ours if not any(name == may or name.startswith(f"{may}.") for may in ATTACKERS_MAY)
    } == set()


# What the numbers must obey ---------------------------------------------------------------------------------------


def test_selections_with_permanent_bits_stay_under_their_ceiling_and_without_them_give_all_away(rng):
    """At every number of rounds the mean AUC is at most the ceiling of ε_P (4 errors); without, it goes to 1."""
    problem = problem_of("mf", "sdcf", open_wide=False)
    protocol = Sdcf(epsilon_i=8.0, epsilon_g=1.0)
    profiles = [rated_by(problem, int(user)) for user in problem.active_users]
    points = selection_curve(profiles, protocol.selection, problem.terms, rng=rng)
    assert [point.rounds for point in points] == list(ROUNDS)
    for point in points:
        error = (point.interval[1] - point.interval[0]) / 4
        assert point.with_permanent_bits <= point.ceiling + 4 * error
    assert points[-1].without > 0.999
    assert points[-1].with_permanent_bits == pytest.approx(points[-1].ceiling, abs=0.02)


def test_counts_drawn_at_once_are_those_of_the_mechanism(rng):
    """The mean count over rounds of `select_items` lies within 5 deviations of the binomial's mean."""
    problem = problem_of("mf", "sdcf", open_wide=False)
    user = int(problem.active_users[0])
    protocol, rounds = Sdcf(epsilon_i=4.0, epsilon_g=1.0), 400
    choice, _ = protocol.selection.draw_permanent(rated_by(problem, user), problem.terms, rng=rng)
    counts = np.zeros(problem.n_items)
    for _ in range(rounds):
        counts[choice.select_items(rng=rng)] += 1
    for bit, chance in ((True, choice.probabilities.prob_send_one), (False, choice.probabilities.prob_send_zero)):
        trials = rounds * int((choice.bits == bit).sum())
        assert abs(counts[choice.bits == bit].sum() - trials * chance) <= 5 * math.sqrt(trials * chance) + 1e-9


def test_a_profile_cap_hides_how_many_are_rated(rng):
    """Without it the likeliest h follows h; with it, every h has the same f, p and q."""
    problem = problem_of("mf", "sdcf", open_wide=False)
    _, observation, truth, _ = watched("mf", "sdcf", open_wide=False)
    capped = replace(observation, protocol=Sdcf(epsilon_i=4.0, epsilon_g=4.0, profile_cap=100))
    assert CountFromSelections().guess(capped).max() <= 100
    assert problem.terms.reports_per_client is not None
    assert judge(CountFromSelections(), observation, truth, rng=rng)[1].value > 0


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        (Sdcf(4.0, 1.0), "selections: epsilon 0.4 for one rating replaced (8 profile level)"),
        (Sdcf(4.0, 1.0, profile_cap=80), "selections: epsilon 0.1 for one rating replaced (8 profile level)"),
        (Isgld(4.0), "existence is not covered"),
        (Plain(), "nothing is claimed"),
    ],
)
def test_every_protocol_says_what_it_claims(protocol, said):
    """The claim stands beside what the canaries rule out."""
    assert canaries.claimed(protocol, 20, 100) == said


def test_a_device_that_is_replayed_says_what_it_said():
    """The same seed, announcements and ratings: what the clients of the reference engine send, to 4-byte rounding."""
    problem, observation, _, _ = watched("mf", "sdcf")
    engine = ReferenceEngine(problem)
    users = [int(user) for user in victims_of(problem)[:3]]
    again = devices.replay(problem, observation.first_rounds(1), users)
    for user, (mine,) in zip(users, again.reports, strict=True):
        theirs = report_on(engine.clients[user], observation.announcements[0])
        assert mine.items.tolist() == theirs.items.tolist()
        assert mine.gradients == pytest.approx(theirs.gradients, rel=1e-5, abs=1e-6)


def test_nothing_sent_is_nothing_learned(rng):
    """Victims of whom nothing but "finished" came: every attack still answers, and knows nothing."""
    observation = watched("mf", "sdcf", open_wide=False)[1]
    silent = replace(observation, reports=tuple((None,) * observation.n_rounds for _ in range(2)))
    assert not ConsistentRatings().guess(silent).any()
    assert not MODEL[1].guess(silent).any()
    assert trace(silent.announcements, silent.reports[0]).direction is None
    assert not LinkRounds().applies_to(silent)
    assert not OppositeDirections().applies_to(silent)


# The command ------------------------------------------------------------------------------------------------------


def test_every_attack_of_the_lists_is_an_attack():
    """Name, target, claim: one small class each, with different names."""
    attacks = [*EXISTENCE, *MODEL, *VALUE, *METADATA]
    assert all(isinstance(attack, Attack) and attack.target in TARGETS and attack.claim for attack in attacks)
    assert len({(attack.target, attack.name) for attack in attacks}) == len(attacks)


def test_the_worst_attack_is_the_one_that_succeeds_most():
    """By the measure of its target."""
    common = {"protocol": "plain", "target": "existence", "metric": "auc", "claim": ""}
    weak, strong = Finding(name="a", value=0.6, **common), Finding(name="b", value=0.9, auc=math.nan, **common)
    assert worst([weak, strong], "plain", "existence") is strong
    assert worst([weak], "plain", "value") is None
    assert strong.record()["auc"] is None


def test_protocols_side_by_side_find_what_one_after_the_other_does():
    """Two processes, the same findings in the same order; timings are not asked for."""
    data = synthetic(n_users=30, n_items=40, n_ratings=500, seed=2)
    settings = settings_for(["plain", "isgld"], model="mf", rounds=2, factors=3)
    steps = []
    names = ["plain", "isgld"]
    together = partial(side_by_side, names=names, steps=STEPS, progress=lambda *step: steps.append(step))
    both = audit(data, settings, n_victims=4, run_all=together)
    assert both.record() == audit(data, settings, n_victims=4).record()
    assert sorted(step for step in steps if step[1] == "done") == [("isgld", "done", 6, 6), ("plain", "done", 6, 6)]


SMALLEST = {
    "mf": [("plain", None), ("isgld", None), ("sdcf", None), ("sdcf", 1)],
    "bpr": [("plain", None), ("sdcf", None), ("sdcf", 3)],
}


@pytest.mark.parametrize(("rounds", "factors"), [(1, 2), (2, 3), (3, 2), (3, 3)])
@pytest.mark.parametrize(("model", "protocol", "cap"), [(model, *one) for model in SMALLEST for one in SMALLEST[model]])
def test_the_smallest_runs_are_audited_too(model, protocol, cap, rounds, factors, monkeypatch):
    """An attack without enough rounds or factors reports nothing; the others do, in numbers, without a warning."""
    monkeypatch.setattr(poisoning, "SHARES", (0.1,))
    monkeypatch.setattr(poisoning, "ROUNDS", 1)
    monkeypatch.setattr(poisoning, "PATIENT_ROUNDS", 1)
    data = synthetic(n_users=16, n_items=20, n_ratings=140, seed=2)
    settings = settings_for([protocol], model=model, rounds=rounds, factors=factors, profile_cap=cap)
    found = audit(data, settings, n_victims=4, clock=lambda: 0.0)
    json.dumps(found.record(), allow_nan=False)
    names = {one.name for one in found.findings}
    assert ("malicious V, marked rows" in names) <= (rounds >= 3 and factors >= 3)
    assert ("difference: the one item rated halfway" in names) == (rounds >= 2 and model == "mf")
    assert {"existence", "model", "metadata", "integrity"} <= {one.target for one in found.findings}


def test_one_factor_is_refused():
    """A vector of one number points one of two ways: there is nothing for attacks on directions to find."""
    data = synthetic(n_users=16, n_items=20, n_ratings=140, seed=2)
    with pytest.raises(ParameterError, match=r"factors .* got 1"):
        audit(data, settings_for(["plain"], model="mf", factors=1), n_victims=4)


@pytest.mark.parametrize("cap", [1, 2, 3, 100])
def test_the_likeliest_count_goes_from_one_to_the_cap(cap):
    """Nobody with a cap of three is taken to have four ratings; somebody with one is possible."""
    terms = problem_of("mf", "sdcf", open_wide=False).terms
    possible, table = selection._count_table(4, Selection(4.0, 8.0, cap), terms)
    assert possible[:3].tolist() == [1, 2, 3][:cap]
    assert possible.max() <= cap
    assert table.shape == (len(possible), 5)


def test_of_more_ratings_than_the_cap_as_many_as_it_says_count(rng):
    """Ten ratings, a cap of one: without permanent bits one is found for sure in time, and the other nine by chance."""
    terms = problem_of("mf", "sdcf", open_wide=False).terms
    points = selection_curve([np.arange(10)] * 20, Selection(1.0, 2.0, profile_cap=1), terms, rng=rng)
    assert points[-1].without == pytest.approx((1 + 9 / 2) / 10, abs=0.05)


@pytest.mark.parametrize(("rounds", "before", "after"), [(2, 1, 1), (5, 3, 2), (42, 22, 20)])
def test_who_comes_back_was_away_before(rounds, before, after, monkeypatch):
    """The two enrolments share no round: the last twenty, at most half, are those of the second alone."""
    seen = []
    scores = LinkEnrolments.scores
    monkeypatch.setattr(LinkEnrolments, "scores", lambda self, *both: seen.append(both) or scores(self, *both))
    data = synthetic(n_users=16, n_items=20, n_ratings=140, seed=2)
    bench = Bench((data, settings_for(["plain"], model="mf", rounds=rounds, factors=3)[0], 4, None, None), print)
    observation = record(bench.problem, bench.victims, bench.sample, bench.popularity)[0]
    assert {one.name for one in bench._linkage(observation)} == {LinkRounds().name, LinkEnrolments().name}
    numbers = [[one.round_number for one in part.announcements] for part in seen[0]]
    assert numbers == [list(range(1, before + 1)), list(range(before + 1, before + after + 1))]


def test_the_command_prints_json_as_documented():
    """`--json` alone on stdout, with exactly the documented fields for every attack."""
    outcome = run(
        "audit", "synthetic:users=40,items=50,ratings=800", "--model", "bpr", "--protocol", "sdcf", "--users", 5,
        "--rounds", 3, "--factors", 4, "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    documented = [
        "protocol",
        "name",
        "target",
        "metric",
        "value",
        "auc",
        "tpr_at_1pct_fpr",
        "interval",
        "chance",
        "claim",
    ]
    assert all(list(attack) == documented for attack in record["attacks"])
    assert {attack["target"] for attack in record["attacks"]} <= set(TARGETS)
    assert "timing of finish" in {attack["name"] for attack in record["attacks"]}


def test_the_command_prints_the_table_and_writes_the_page(tmp_path):
    """Protocol by target, then every attack; with --plots, pictures and one page."""
    outcome = run(
        "audit", "synthetic:users=40,items=50,ratings=800", "--protocol", "plain", "--users", 4, "--rounds", 2,
        "--factors", 3, "--plots", tmp_path / "plots",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "most successful attack" in outcome.out
    assert "claim that it tests" in outcome.out
    assert json.loads((tmp_path / "plots" / "audit.json").read_text("utf-8"))["seconds"] > 0
    assert (tmp_path / "plots" / "audit.html").is_file()
    assert (tmp_path / "plots" / "audit.json").is_file()
    assert list((tmp_path / "plots").glob("*.svg"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protocols": ["plain"], "model": "mf", "epsilon_g": 1.0}, "epsilon_g must"),
        ({"protocols": None, "model": "gp"}, "model .* got gp"),
        ({"protocols": ["masked"], "model": "mf", "rounds": 100}, "protocol .* mf, got masked"),
    ],
)
def test_what_cannot_be_audited_is_refused(options, said):
    """In one sentence."""
    with pytest.raises(ParameterError, match=said):
        settings_for(options.pop("protocols"), **options)


@pytest.mark.data
def test_people_of_the_movielens_sets_are_known(data_dir):
    """943 people with gender, age and occupation: 273 women, 21 occupations, age cut at the median."""
    people = load_people("ml-100k", [str(user) for user in range(1, 944)], data_dir)
    assert people["gender"].sum() == 273
    assert len(np.unique(people["occupation"])) == 21
    assert 0.4 < people["age"].mean() < 0.5
    assert load_people("synthetic", [], data_dir) is None


def test_people_are_unknown_where_their_file_is_missing(tmp_path):
    """Ratings without the file beside them: no attack on persons, and no error."""
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text("1\t2\t3\t4\n")
    assert load_people("ml-100k", ["1"], tmp_path) is None


# Sweeps and the report --------------------------------------------------------------------------------------------


def test_louder_noise_hides_the_vector_and_costs_accuracy():
    """At a thousand times its variance the direction is worse known than at once, or the run diverged."""
    data = synthetic(n_users=60, n_items=80, n_ratings=2_000, seed=3)
    settings = settings_for(["plain"], model="mf", rounds=5, factors=4)[0]
    quiet, loud = sweeps.noise_curve(data, settings, (1.0, 300.0))
    assert loud["rmse"] is None or loud["cosine, rank one, one report"] < quiet["cosine, rank one, one report"]
    assert quiet["rmse"] < 1.5


def test_budgets_are_swept():
    """One point per ε_g, with every attack and the error."""
    data = synthetic(n_users=40, n_items=50, n_ratings=800, seed=3)
    settings = settings_for(["sdcf"], model="mf", rounds=3, factors=3)[0]
    (point,) = sweeps.budget_curve(data, settings, (1.0,))
    assert list(point) == [
        "epsilon_g",
        "selection average",
        "error likelihood",
        "averaged errors",
        "consistent ratings",
        "rmse",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sweep", "colour"), ("sweep", "got colour")),
        (("--sweep", "budget", "--protocol", "plain"), ("sweep budget", "epsilon_g", "got plain")),
        (("--sweep", "noise", "--model", "bpr"), ("sweep noise", "got bpr")),
        (("--sweep", "budget", "--model", "bpr"), ("sweep budget", "got bpr")),
        (("--users", 100_000), ("users", "at most 30", "got 100000")),
        (("--users", 3), ("users", "at least 4", "got 3")),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_first_round(options, said, monkeypatch):
    """In one sentence, and nobody waits for an audit that is thrown away."""

    def play(engine):
        raise AssertionError("a round was played")

    monkeypatch.setattr(hushrec.audit.observed_run, "run_round", play)
    monkeypatch.setattr(hushrec.audit.run, "record", play)
    outcome = run("audit", "synthetic:users=60,items=40,ratings=900", "--rounds", 2, "--factors", 3, *options)
    assert (outcome.code, outcome.out) == (1, "")
    assert all(part in " ".join(outcome.err.split()) for part in said)


@pytest.mark.parametrize("n_users", [5, 7])
def test_too_few_people_are_refused(n_users):
    """Four to attack, and as many others."""
    data = synthetic(n_users=n_users, n_items=30, n_ratings=20 * n_users)
    with pytest.raises(ParameterError, match=rf"at least 8 people, got {n_users}"):
        audit(data, settings_for(["plain"], model="mf", rounds=1), n_victims=4)


def test_half_of_few_people_are_attacked_unless_somebody_says_how_many():
    """A small data set is audited without a word about how many."""
    data = synthetic(n_users=20, n_items=30, n_ratings=200)
    found = audit(data, settings_for(["plain"], model="mf", rounds=2, factors=2))
    assert found.about["users"] == 10


def test_an_audit_of_half_of_the_people_has_others_to_compare_with():
    """As many as are allowed are attacked; canaries and popularity are of the rest."""
    data = synthetic(n_users=60, n_items=40, n_ratings=900)
    bench = Bench((data, settings_for(["plain"], model="mf", rounds=1)[0], 30, None, None), silent)
    assert len(bench.victims) == 30
    assert len(bench.canaries.users) > 0
    assert 0 < bench.popularity.max() <= 1


def test_an_audit_of_a_run_that_diverges_says_so_in_one_sentence():
    """With round, step and what to do, as training does."""
    data = synthetic(n_users=40, n_items=50, n_ratings=800, seed=2)
    settings = settings_for(["plain"], model="mf", rounds=20, factors=3, step=1e4)
    with pytest.raises(Diverged, match=r"diverged in round \d+.*step"):
        audit(data, settings, n_victims=4)


RECORD = {
    "dataset": "made <up>",
    "model": "mf",
    "rounds": 2,
    "users": 4,
    "baselines": {"the bias model": 0.94},
    "attacks": [
        Finding(protocol="sdcf", name="a", target="existence", metric="auc", value=0.9, claim="none").record(),
        Finding(
            protocol="sdcf",
            name="b",
            target="value",
            metric="x",
            value=1,
            interval=(0.1, 0.2),
            chance=0.5,
            claim="none",
        ).record(),
    ],
    "worst": {"sdcf": {"existence": {"name": "a", "metric": "auc", "value": 0.9}, "value": None}},
    "curves": {
        "sdcf": {
            "false_rates": [0.0, 0.1, 1.0],
            "roc": {"a": [0.0, 0.5, 1.0]},
            "rounds": [{"rounds": 1, "a": 0.5}, {"rounds": 2, "a": 0.6}],
            "selection": [{"rounds": 1, "with_permanent_bits": 0.5, "ceiling": 0.6, "without": 0.7}],
            "noise": [{"noise": 1.0, "cosine, a": 1.0, "AUC, b": 0.9, "rmse": 0.9}, {"noise": 1e4, "rmse": None}],
            "budget": [{"epsilon_g": 1.0, "a": 0.8, "rmse": 0.9}, {"epsilon_g": 0.0, "a": 0.7, "rmse": 9.0}],
        }
    },
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of the record, alone with its files in a folder."""
    return audits.write_audit(RECORD, tmp_path_factory.mktemp("audit"))


def test_an_audit_becomes_a_page_and_is_read_again(page):
    """Record, plots and page; names from outside are escaped; `read_audits` finds the record."""
    text = page.read_text("utf-8")
    assert "made &lt;up&gt;" in text
    assert "made <up>" not in text
    assert "auc 0.900: a" in text
    assert "1.000\u00a0(0.100\u2060–\u20600.200)" in text
    assert {file.stem for file in page.parent.glob("*.svg")} == {
        f"sdcf-{kind}" for kind in ("roc", "rounds", "selection", "noise", "budget")
    }
    assert audits.read_audits([page.parent]) == [json.loads(json.dumps(RECORD))]


def test_an_interval_below_zero_is_written_with_a_word():
    """−0.2 (−0.4 to 0.1): two dashes in a row cannot be read."""
    finding = Finding(
        protocol="sdcf", name="a", target="metadata", metric="auc", value=-0.2, interval=(-0.4, 0.1), claim="none"
    )
    record = {"worst": {"sdcf": {}}, "attacks": [finding.record()]}
    assert audits.attack_rows(record)[0].cells == ["−0.200 (−0.400 to 0.100)"]


def test_places_on_an_axis_are_written_as_plain_numbers(page):
    """10⁴ and 0, and no code for a formula; an error off the plot is written at its end."""
    noise, budget = ((page.parent / f"sdcf-{kind}.svg").read_text("utf-8") for kind in ("noise", "budget"))
    assert "10⁴" in noise
    assert "9.00 ↑" in budget
    assert "mathdefault" not in noise + budget


def test_a_damaged_audit_is_refused(tmp_path):
    """By its name."""
    (tmp_path / "audit.json").write_text("{}")
    with pytest.raises(RunError, match=r"audit\.json is damaged"):
        audits.read_audits([tmp_path])


def test_an_audit_that_cannot_be_written_is_one_sentence(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="writable"):
        audits.write_audit({**RECORD, "curves": {}}, tmp_path / "taken")


def test_the_report_takes_audits_in(page, tmp_path):
    """`report --audit` adds the section and its plots to the page of runs."""
    data = ("synthetic:users=30,items=40,ratings=400", "--model", "mf", "--rounds", 2, "--factors", 3)
    assert run("train", *data, "--no-compare", "--out", tmp_path / "run").code == 0
    outcome = run("report", tmp_path / "run", "--out", tmp_path / "page.html", "--audit", page.parent)
    assert outcome.code == 0, outcome.err
    assert "telling rated from unrated items" in (tmp_path / "page.html").read_text("utf-8")


# Where new users stumbled ------------------------------------------------------------------------------------------


def dense(n_users: int, n_items: int, missing: int) -> Ratings:
    """Everybody rated all items but so many."""
    rows = [(user, item) for user in range(n_users) for item in range(n_items) if (item - user) % n_items >= missing]
    users, items = np.array(rows).T
    values = np.random.default_rng(0).integers(1, 6, len(rows)).astype(float)
    ids = [[str(number) for number in range(count)] for count in (n_users, n_items)]
    return Ratings("dense", *ids, users, items, values, Scale(1, 5))


@pytest.mark.parametrize("protocol", ["plain", "sdcf"])
@pytest.mark.parametrize("missing", [0, 1])
def test_people_who_rated_nearly_everything_can_be_audited(protocol: str, missing: int) -> None:
    """Canaries are planted where there is room, and who has nothing left to rate rates nothing halfway."""
    found = audit(dense(20, 14, missing), settings_for([protocol], model="mf", rounds=3, factors=4))
    assert {one.target for one in found.findings} >= {"existence", "value", "epsilon"}


def test_no_more_ratings_are_moved_than_there_are_unrated_items() -> None:
    """A quarter of 14 ratings is three; with two items unrated, two are moved, to different ones."""
    settings = settings_for(["plain"], model="mf", rounds=2, factors=2)[0]
    data = dense(10, 16, 2)
    problem = make_problem(
        data.users, data.items, data.values, n_users=10, n_items=16, model=settings.make_model(data),
        protocols=[settings.make_protocol()], rounds=2, step=0.4,
    )  # fmt: skip
    planted, coins = canaries.plant(problem, problem.active_users, rng=np.random.default_rng(0))
    assert np.bincount(coins.rows).tolist() == [2] * 10
    for row, user in enumerate(coins.users):
        assert len(set(coins.tails[coins.rows == row])) == 2
        assert len(set(rated_by(planted, int(user)))) == 14


def test_a_folder_for_plots_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    """Before the data is even looked for."""
    (tmp_path / "file").write_text("")
    outcome = run("audit", "no-such-data", "--plots", tmp_path / "file" / "plots")
    assert outcome.code == 1
    assert "must be writable" in outcome.err
