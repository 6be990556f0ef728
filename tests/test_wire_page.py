"""docs/wire.md is enough to write a device: its tables and vectors are true, and a JavaScript device goes by them."""

import hashlib
import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from service_kit import OPEN_SOCKETS, PATIENCE, RawDevice, live_server, make_body, wait_for
from wire_kit import describe

from hushrec import wire
from hushrec.errors import CODES, RemoteProtocolError
from hushrec.messages import KINDS, PROTOCOL_VERSION, Envelope
from hushrec.protocols import PROTOCOLS
from hushrec.service import schema

pytestmark = OPEN_SOCKETS
for protocol in PROTOCOLS.values():
    importlib.import_module(protocol.messages)

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "wire.md").read_text("utf-8")
VECTORS = ROOT / "docs" / "wire-vectors.json"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed: the JavaScript device is not run")


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """docs/wire_vectors.py as a module."""
    spec = importlib.util.spec_from_file_location("wire_vectors", ROOT / "docs" / "wire_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(text: str) -> list[tuple[str, str]]:
    """The first two columns of the tables in a text, without their heads."""
    found = re.findall(r"^\| `([a-z_-]+)` \| ([^|]+?) \|", text, re.MULTILINE)
    return [(name, words) for name, words in found]


def section(title: str) -> str:
    """What the page says below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_every_protocol_declares_its_messages_where_the_decoder_looks() -> None:
    """In a fresh process a tag alone is enough: the module that declares it is found."""
    code = (
        "from hushrec.wire import KINDS, find_kind\n"
        "assert not any('.' in tag for tag in KINDS)\n"
        "print(find_kind('gradient.report').tag, find_kind('masked.table').tag, find_kind('gradient.nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "gradient.report masked.table None\n"


@pytest.mark.parametrize("tag", [tag for tag in KINDS if not tag.startswith("toy.")])
def test_the_page_lists_every_message_field_by_field(tag: str) -> None:
    """In the order of the class, with its type on the wire and its largest size."""
    text = section(f"`{tag}`")
    assert rows(text) == describe(KINDS[tag].message)
    assert f"At most {KINDS[tag].largest:,} bytes" in text


def test_the_page_names_the_protocol_version() -> None:
    """Once in words; the vectors have it too."""
    assert f"The protocol version is **{PROTOCOL_VERSION}**" in PAGE


def test_the_page_lists_every_code_with_its_status() -> None:
    """Those that a refusal may carry are those that the page explains."""
    table, _, admin = section("Refusals").partition("An admin's requests")
    listed = {code: int(status) for code, status in rows(table)}
    assert listed == {code: status for code, status in CODES.items() if code in listed}
    for code in CODES.keys() - listed.keys():
        assert re.search(rf"`{code}`[^(]*\({CODES[code]}\)", admin), code


def test_the_vectors_are_what_the_library_makes(made: ModuleType) -> None:
    """docs/wire-vectors.json is what `python docs/generate.py wire` writes."""
    assert VECTORS.read_text("utf-8") == made.as_text(), "run python docs/generate.py wire"


def test_every_type_has_a_vector_and_every_refusal_is_refused() -> None:
    """Read back from the file, as another program would."""
    found = json.loads(VECTORS.read_text("utf-8"))
    bodies = {name: bytes.fromhex(entry["hex"]) for name, entry in found["messages"].items()}
    types = set(re.findall(r'"type": "([a-z.-]+)"', json.dumps(found["messages"])))
    assert types == {tag for tag in KINDS if not tag.startswith("toy.")}
    for name, body in bodies.items():
        kind = KINDS[found["messages"][name]["message"]["type"]]
        assert wire.encode(wire.decode(body, kind.message)) == body
    for entry in found["refused"]:
        with pytest.raises(RemoteProtocolError) as caught:
            wire.decode(bytes.fromhex(entry["hex"]), Envelope)
        assert caught.value.code == entry["code"]


def test_the_hashes_are_computed_as_the_page_says() -> None:
    """From the vectors alone: the terms of a masked offer, and the public table of another offer."""
    found = json.loads(VECTORS.read_text("utf-8"))
    terms = found["messages"]["masked offer"]["message"]["terms"]
    priced, cohort = terms["priced"], terms["priced"]["cohort"]
    rules = (terms["rules"][name] for name in ("smallest", "most_corrupt", "neighbours", "threshold"))
    text = b"hushrec masked 1 terms" + struct.pack(">3d", priced["epsilon"], priced["delta"], priced["reserve"])
    text += struct.pack(">IddI", cohort["devices"], cohort["survivors"], cohort["corrupt"], cohort["omitted"])
    text += struct.pack(">4I", *rules) + struct.pack(">2I", len(priced["codes"]), priced["plan"]["repeats"])
    for one, codes in zip(priced["plan"]["rounds"], priced["codes"], strict=True):
        text += struct.pack(">I", len(codes))
        for block, code in zip(one["blocks"], codes, strict=True):
            name, shape = block["name"].encode(), block["shape"]
            text += struct.pack(">I", len(name)) + name + struct.pack(f">{1 + len(shape)}I", len(shape), *shape)
            text += struct.pack(">3d", block["clip"], block["share"], code["clip"])
            text += struct.pack(">IQQ", code["clip_units"], code["norm_squared"], code["share_variance"])
    table = found["messages"]["public"]["message"]["arrays"][0]
    name, numbers = table["name"].encode(), np.array(table["numbers"]["float32"], dtype="<f4")
    lengths = struct.pack(">4I", len(name), len(table["shape"]), *table["shape"])
    assert found["hashes"] == {
        "terms of the masked offer": hashlib.sha256(text).hexdigest(),
        "table of the public message": hashlib.sha256(
            b"hushrec masked 1 table" + lengths + name + numbers.tobytes()
        ).hexdigest(),
    }


def run_node(*arguments: str) -> Any:
    """What the JavaScript device prints."""
    assert NODE is not None
    command = [NODE, str(ROOT / "tests" / "device.mjs"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
def test_a_device_in_javascript_agrees_with_every_vector() -> None:
    """Ids, signed texts, signatures, messages, calibrations and the maths of a round."""
    assert run_node("vectors", str(VECTORS))["checked"] >= 39


@needs_node
def test_a_device_in_javascript_enrols_and_reports_in_a_round(tmp_path: Path) -> None:
    """Against a real server: its report is stored byte for byte, acknowledged twice, and counted once."""
    with live_server(tmp_path) as live, RawDevice(live) as other:
        ratings = {f"item-{n}": float(1 + n % 5) for n in range(0, 60, 4)}
        said = run_node("report", live.url, json.dumps(ratings))
        assert [receipt["repeated"] for receipt in said["receipts"]] == [False, True]
        assert live.rounds.n_reports == 1
        query = sa.select(schema.reports.c.body).where(schema.reports.c.device == said["device"])
        (body,) = live.storage.at_once(lambda connection: connection.execute(query).scalars().all())
        report = wire.decode(bytes(body), Envelope).message
        assert report.items.tolist() == said["items"]
        assert np.array_equal(report.gradients.ravel(), np.array(said["gradients"]))
        before = live.rounds.public["item_vectors"]
        other.report(make_body())
        wait_for(lambda: live.rounds.round_number == 2)
        moved = np.flatnonzero(np.any(live.rounds.public["item_vectors"] != before, axis=1))
        assert set(moved) == set(said["items"]) | {1, 5, 9}
