"""A device's store: damage and impossible places are one sentence, and nothing of anybody else's is touched."""

import json
import math
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from command import run
from masked_kit import bytes_in
from offline_kit import OfflineServer, make_small_offer

from hushrec import Device
from hushrec.device import joining
from hushrec.device.budgets import Budgets
from hushrec.device.store import NAMES, Store
from hushrec.errors import HushrecError, ParameterError, StorageError

SECRET = bytes(range(100, 132))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a device that has joined and reported once."""
    folder = tmp_path_factory.mktemp("filled") / "store"
    server = OfflineServer(make_small_offer(reports_per_client=15))  # no report is empty, but once in 2**30 times
    with Device.create(folder) as device:
        device.add_ratings({f"item-{n}": 1 + n % 5 for n in range(10)})
        server.run(joining.join(device._session))
        server.run(device._session.step())
    return folder


def use(folder: Path) -> None:
    """Everything that reads the store, and one write."""
    with Device(folder) as device:
        device.budget()
        device.recommend(5)
        device.sent()
        device.search("item")
        device.add_rating("item-1", 3)


def damage(file: Path, rng: np.random.Generator) -> None:
    """Spoils a database in one of the ways in which disks do."""
    content = bytearray(file.read_bytes())
    kind, place = rng.integers(5), int(rng.integers(len(content)))
    if kind == 0:
        del content[place:]
    elif kind == 1:
        content[place : place + 512] = rng.bytes(512)
    elif kind == 2:
        content[place] ^= 1 << int(rng.integers(8))
    elif kind == 3:
        page = 4096 * (place // 4096)
        content[page : page + 4096] = bytes(4096)
    else:
        content[:16] = b"this is no store"
    file.write_bytes(content)


def test_a_damaged_store_is_one_sentence_or_works(filled: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    """Forty kinds of damage: nothing but our own errors come out, and most are noticed."""
    said = []
    for n in range(40):
        folder = tmp_path / str(n)
        shutil.copytree(filled, folder)
        damage(folder / "device.sqlite", rng)
        try:
            use(folder)
        except HushrecError as error:
            said.append(str(error))
    assert len(said) >= 10
    assert not any("\n" in sentence for sentence in said)


@pytest.mark.parametrize("durable", [True, False])
def test_no_change_leaves_anything_in_the_log_of_an_open_store(tmp_path: Path, durable: bool) -> None:
    """A value is put, replaced and dropped; afterwards no file has it, although the store is still open."""
    with closing(Store(tmp_path / "store", create=True)) as store:
        for value in (SECRET, b"another"):
            with store.change(durable=durable):
                store.put("private_state", value)
            assert (tmp_path / "store" / "device.sqlite-wal").read_bytes() == b""
            assert (SECRET in bytes_in(tmp_path / "store")) == (value == SECRET)
        with store.change(durable=durable):
            store.drop("private_state")
        assert b"another" not in bytes_in(tmp_path / "store")


def test_a_log_that_a_killed_process_left_is_truncated_on_opening(tmp_path: Path) -> None:
    """A copy of the files while a log is there stands for the kill."""
    with closing(Store(tmp_path / "store", create=True)) as store:
        store._rows("INSERT INTO kept_private_state VALUES (1, ?)", (SECRET,))
        store._rows("DELETE FROM kept_private_state")
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    assert SECRET in bytes_in(tmp_path / "killed")
    with closing(Store(tmp_path / "killed")):
        assert SECRET not in bytes_in(tmp_path / "killed")


# What is left of a value that is gone --------------------------------------------------------------------------

MARK = b"\xf1of value"  # made-up values repeat this mark, their own number and its complement
VALUES = sorted({*NAMES} - {"ratings"})


def marked(number: int, size: int) -> bytes:
    """A value of about this size, of which any 33 bytes give its number away."""
    return (MARK + number.to_bytes(4, "big") + (2**32 - 1 - number).to_bytes(4, "big")) * (size // 17 + 1)


def found_in(folder: Path) -> set[int]:
    """The numbers of all made-up values of which a piece lies in any file of a store."""
    pairs = re.findall(re.escape(MARK) + b"(.{4})(.{4})", bytes_in(folder), re.DOTALL)
    numbers = ((int.from_bytes(number, "big"), int.from_bytes(check, "big")) for number, check in pairs)
    return {number for number, check in numbers if number + check == 2**32 - 1}


def change_at_random(store: Store, kept: dict[str, int], number: int, rng: np.random.Generator) -> None:
    """Replace or drop up to four values, of 10 to 3,000 bytes."""
    with store.change():
        for name in map(str, rng.choice(VALUES, size=rng.integers(1, 5), replace=False)):
            kept.pop(name, None)
            if rng.random() < 0.2:
                store.drop(name)
            else:
                kept[name] = number
                store.put(name, marked(number, int(np.exp(rng.uniform(np.log(10), np.log(3_000))))))


def give_up(store: Store, number: int) -> None:
    """Begin a change of a value that is larger than SQLite's cache, and undo it."""
    with suppress(KeyboardInterrupt), store.change():
        store.put("outbox", marked(number, 3_000_000))
        raise KeyboardInterrupt


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_no_piece_of_a_replaced_value_is_left_in_any_file(tmp_path: Path, seed: int) -> None:
    """Random changes to an open store, one of them given up: after each, its files hold the present values alone."""
    rng, kept = np.random.default_rng(seed), dict[str, int]()
    with closing(Store(tmp_path / "store", create=True)) as store:
        for number in range(1, 56):
            change_at_random(store, kept, number, rng)
            if number == 9:
                give_up(store, 100)
            assert found_in(tmp_path / "store") == set(kept.values())


@pytest.mark.parametrize("seed", [4, 5])
def test_no_removed_rating_is_left_in_any_file(tmp_path: Path, seed: int) -> None:
    """Many ratings come and go; the ids of those that are gone are in no file."""
    rng, kept, gone = np.random.default_rng(seed), set[str](), set[str]()
    with closing(Store(tmp_path / "store", create=True)) as store:
        for _ in range(60):
            new = [f"<item {rng.integers(10**8):08d} {'x' * rng.integers(0, 150)}>" for _ in range(rng.integers(1, 60))]
            old = [item for item in sorted(kept.union(new)) if rng.random() < 0.3]
            with store.change():
                store.put_ratings(dict.fromkeys(new, 4.0))
                assert all(store.drop_rating(item) for item in old)
            kept, gone = kept.union(new).difference(old), gone.union(old)
        assert store.ratings().keys() == kept
        files = bytes_in(tmp_path / "store")
    assert not any(item.encode() in files for item in gone)


def test_a_store_of_schema_version_2_is_migrated(tmp_path: Path) -> None:
    """Its values stay, and what SQLite left of earlier values in unused parts of pages is overwritten."""
    (tmp_path / "store").mkdir(mode=0o700)
    path, kept = tmp_path / "store" / "device.sqlite", dict[str, bytes]()
    os.close(os.open(path, os.O_CREAT, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for query in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA secure_delete = OFF",
            "CREATE TABLE ratings (item TEXT PRIMARY KEY, value REAL NOT NULL)",
            "CREATE TABLE catalogue (position INTEGER PRIMARY KEY, id TEXT UNIQUE, title TEXT, attributes BLOB)",
            "CREATE TABLE kept (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
            "PRAGMA user_version = 2",
            "INSERT INTO catalogue VALUES (0, 'a', 'A', NULL), (1, 'b', 'B', NULL)",
            "INSERT INTO ratings VALUES ('b', 4.5), ('c', 2)",
        ):
            database.execute(query)
        for number in range(60):
            name = VALUES[1 + number % 6]
            kept[name] = marked(number, 300 + 997 * number % 7_000)
            database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (name, kept[name]))
    assert found_in(tmp_path / "store") > set(range(54, 60))
    for _ in range(2):  # the second opening finds version 3
        with closing(Store(tmp_path / "store")) as store:
            assert {name: store.get(name) for name in kept} == kept
            assert store.ratings() == {"b": 4.5, "c": 2.0}
            assert store.rated_items(2) == {1: 4.5}
            assert found_in(tmp_path / "store") == set(range(54, 60))


@pytest.mark.parametrize("name", ["budgets", "ledger", "offer", "key", "private_state", "public", "ratings", "shown"])
def test_a_value_that_cannot_be_read_is_called_damaged(filled: Path, tmp_path: Path, name: str) -> None:
    """Each kept value by itself; the store is left as it is."""
    folder = tmp_path / "store"
    shutil.copytree(filled, folder)
    with sqlite3.connect(folder / "device.sqlite") as database:
        database.execute(f"UPDATE kept_{name} SET value = x'fffefd'")
    database.close()
    before = (folder / "device.sqlite").read_bytes()
    with pytest.raises(StorageError, match="damaged"):
        use(folder)
    assert (folder / "device.sqlite").read_bytes() == before


def test_a_last_report_of_an_earlier_version_is_not_shown(filled: Path, tmp_path: Path) -> None:
    """Its message lacks a field; everything else of the store works."""
    folder = tmp_path / "store"
    shutil.copytree(filled, folder)
    with closing(Store(folder)) as store, store.change():
        ((body, private),) = msgspec.msgpack.decode(store.get("shown"))
        content = msgspec.msgpack.decode(body)
        content.popitem()
        store.put("shown", msgspec.msgpack.encode([(msgspec.msgpack.encode(content), private)]))
    with Device(folder) as device:
        assert device.sent() is None
    use(folder)


def test_a_damaged_store_is_one_sentence_in_the_shell(filled: Path, tmp_path: Path) -> None:
    """Exit code 1, what is wrong, and that nothing was overwritten; `init` in its place changes nothing either."""
    folder = tmp_path / "store"
    shutil.copytree(filled, folder)
    (folder / "device.sqlite").write_bytes(b"this is no store" * 300)
    for command in (("budget",), ("recommend",), ("join",), ("rate", "item-1", "3"), ("init",), ("forget", "--yes")):
        outcome = run("device", *command, "--store", folder)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1), outcome.err
        assert "store" in outcome.err
    assert (folder / "device.sqlite").read_bytes() == b"this is no store" * 300


def test_impossible_places_are_one_sentence(tmp_path: Path) -> None:
    """A file in the way, a folder below a file, a name too long: nothing is made."""
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300), Path("/proc/hushrec/store")):
        for command in ("init", "budget"):
            outcome = run("device", command, "--store", place)
            assert (outcome.code, outcome.err.count("\n")) == (1, 1), outcome.err
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("place", [".", "device.sqlite"])
def test_a_store_that_others_can_read_is_not_opened(tmp_path: Path, place: str) -> None:
    """Neither the folder nor the file; closed to others again, the store opens."""
    folder = tmp_path / "store"
    Store(folder, create=True).close()
    mode = (folder / place).stat().st_mode
    assert mode & 0o077 == 0
    (folder / place).chmod(mode | 0o040)
    with pytest.raises(StorageError, match="its owner only"):
        Store(folder)
    (folder / place).chmod(mode)
    Store(folder).close()


def test_the_database_is_set_to_keep_nothing_that_was_removed(tmp_path: Path) -> None:
    """Some builds of SQLite overwrite what is removed by default, so that other tests do not notice the setting."""
    with closing(Store(tmp_path / "store", create=True)) as store:
        settings = {
            name: store._rows(f"PRAGMA {name}")[0][0] for name in ("secure_delete", "temp_store", "synchronous")
        }
    assert settings == {"secure_delete": 1, "temp_store": 2, "synchronous": 2}  # on, memory, full


def test_a_folder_with_files_of_ones_own_is_no_place_for_a_store(tmp_path: Path) -> None:
    """`init --store .` neither closes a folder to others nor puts it in reach of `forget`."""
    tmp_path.chmod(0o755)
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(StorageError, match="new or empty folder"):
        Device.create(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert os.listdir(tmp_path) == ["letter"]


@pytest.mark.parametrize("way", [Device.forget, lambda folder: run("device", "forget", "--yes", "--store", folder)])
def test_forgetting_removes_the_stores_own_files_alone(tmp_path: Path, way: Callable[[Path], object]) -> None:
    """What somebody put beside the store stays; the folder goes when nothing else is in it."""
    for name, beside in (("alone", None), ("shared", "letter")):
        Device.create(tmp_path / name).close()
        if beside:
            (tmp_path / name / beside).write_text("dear")
        way(tmp_path / name)
    assert not (tmp_path / "alone").exists()
    assert os.listdir(tmp_path / "shared") == ["letter"]
    assert (tmp_path / "shared" / "letter").read_text() == "dear"


def test_a_store_with_a_least_cohort_that_is_now_refused_still_opens(tmp_path: Path) -> None:
    """In the form of this version and in that of earlier ones; a person can no longer choose it."""
    for record in ({"options": {"masked": {"least_cohort": 2}}}, {"epsilon": 4.0, "least_cohort": 2}):
        assert Budgets.from_record(record).chosen("masked")["least_cohort"] == 2
    with Device.create(tmp_path / "device") as device:
        with pytest.raises(ParameterError, match="least_cohort"):
            device.choose(least_cohort=2)
        device.choose(least_cohort=4)
        assert device.budgets.chosen("masked")["least_cohort"] == 4


def test_infinite_budgets_survive_the_store_where_they_are_allowed() -> None:
    """JSON has no infinity, so the record spells it."""
    budgets = Budgets(limits={"table": math.inf}).choosing({"epsilon": math.inf})
    record = json.loads(json.dumps(budgets.to_record(), allow_nan=False))
    assert record["options"] == {"masked": {"own_epsilon": "inf"}}
    assert Budgets.from_record(record) == budgets
    with pytest.raises(ParameterError, match="epsilon_i must be finite"):
        Budgets().choosing({"epsilon_i": math.inf})
