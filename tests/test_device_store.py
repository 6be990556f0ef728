"""A device's store: damage and impossible places are one sentence, and nothing of anybody else's is touched."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from command import run
from masked_kit import bytes_in
from offline_kit import OfflineServer, make_small_offer

from hushrec import Device
from hushrec.device import joining
from hushrec.device.store import Store
from hushrec.errors import HushrecError, StorageError

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
        store._rows("INSERT INTO kept VALUES ('private_state', ?)", (SECRET,))
        store._rows("DELETE FROM kept")
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    assert SECRET in bytes_in(tmp_path / "killed")
    with closing(Store(tmp_path / "killed")):
        assert SECRET not in bytes_in(tmp_path / "killed")


@pytest.mark.parametrize("name", ["budgets", "ledger", "offer", "key", "private_state", "public", "shown"])
def test_a_value_that_cannot_be_read_is_called_damaged(filled: Path, tmp_path: Path, name: str) -> None:
    """Each kept value by itself; the store is left as it is."""
    folder = tmp_path / "store"
    shutil.copytree(filled, folder)
    with sqlite3.connect(folder / "device.sqlite") as database:
        database.execute("UPDATE kept SET value = x'fffefd' WHERE name = ?", (name,))
    database.close()
    before = (folder / "device.sqlite").read_bytes()
    with pytest.raises(StorageError, match="damaged"):
        use(folder)
    assert (folder / "device.sqlite").read_bytes() == before


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
