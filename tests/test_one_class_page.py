"""The tables of model `audience` on docs/one-class-and-fm.md come from records, from however many there are."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from hushrec.experiment_records import Shared, write_records

ROOT = Path(__file__).parents[1]
MEASURES = ("auc", "hr_at_10", "ndcg_at_10", "recall_at_10")


@pytest.fixture(scope="module")
def one_class() -> ModuleType:
    """docs/one_class.py."""
    spec = importlib.util.spec_from_file_location("one_class", ROOT / "docs" / "one_class.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_small(folder: Path, epsilons: list[float | str]) -> None:
    """Records of two splits, with peers on the first; AUC 0.9 and 0.92 at every budget."""
    about = {"name": folder.name, "title": "A task", "config": {}, "dataset": "some", "versions": {}, "machine": "here"}
    about["data"] = {"users": 5, "items": 6, "scale": [1, 5], "checksum": "c"}
    settings = [
        {"label": f"masked ε={epsilon}", "model": "audience", "protocol": "masked", "engine": "cpu", "rounds": 2}
        | {"factors": None, "step": None, "config": {}, "budget": {"unit": "profile", "epsilon": epsilon}}
        for epsilon in epsilons
    ]
    baselines = {name: dict.fromkeys(MEASURES, value) for name, value in (("random", 0.5), ("popularity", 0.8))}
    split = {"train": 8, "test": 2, "cold_users": 0, "cold_items": 0, "baselines": baselines}
    rows = [
        {
            "setting": number,
            "split_seed": seed,
            "seed": seed,
            "metrics": dict.fromkeys(MEASURES, 0.9 + 0.02 * seed)
            | {f"private_popularity_{name}": 0.7 for name in MEASURES},
            "curve": [{"round": 2, "auc": 0.9}],
            "seconds": 1.0,
            "bytes_per_client_round": 10.0,
            "value_rho": {"median": None, "max": None},
        }
        for seed in range(2)
        for number in range(len(epsilons))
    ]
    write_records(folder, Shared(about, settings, {0: split, 1: split}), rows)
    peers = {"splits": {"0": {"EASE, tuned": dict.fromkeys(MEASURES, 0.95)}}}
    (folder / "peers.json").write_text(json.dumps(peers))


def test_the_page_has_what_the_records_say(one_class: ModuleType) -> None:
    """Whatever records there are now."""
    page = (ROOT / "docs" / "one-class-and-fm.md").read_text("utf-8")
    assert one_class.START in page
    assert one_class.with_audience(page) == page, "run python docs/generate.py one-class"


def test_a_table_has_baselines_peers_and_every_budget(one_class: ModuleType, tmp_path: Path) -> None:
    """Means of the splits, how many of them, the largest budget first, and the default in a sentence."""
    write_small(tmp_path / "one-class-ml-1m", ["inf", 1.0, 8.0])
    made = one_class.with_audience(f"before\n{one_class.START}\nold\n{one_class.END}\nafter", tmp_path)
    lines = made.splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert [row[:3] for row in rows[2:]] == [
        ["random order", "not private", "0.500"],
        ["most popular, exact counts", "not private", "0.800"],
        ["EASE, tuned, one split", "not private", "0.950"],
        ["`audience`", "ε = ∞ (no noise)", "0.910"],
        ["most popular by its released counts", "ε = ∞ (no noise)", "0.700"],
        ["`audience`", "ε = 8", "0.910"],
        ["most popular by its released counts", "ε = 8", "0.700"],
        ["`audience`", "ε = 1", "0.910"],
        ["most popular by its released counts", "ε = 1", "0.700"],
    ]
    assert {len(row) for row in rows} == {6}
    (sentence,) = [line for line in lines if line.startswith("**MovieLens-1M**")]
    for part in ("mean of 2 splits", "ε = 8", "0.910", "0.800", "EASE, tuned", "0.950", "0.014"):
        assert part in sentence


def test_without_records_the_page_says_how_to_make_them(one_class: ModuleType, tmp_path: Path) -> None:
    """One sentence with a command; other sets than those of the page do not count."""
    write_small(tmp_path / "another", [8.0])
    assert "hushrec experiment" in one_class.audience_tables(tmp_path)
