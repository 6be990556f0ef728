"""Processor time of a whole device in one masked round: cryptography, table, noise, ledger, store and HTTP over TLS.

    python benchmarks/masked_device.py [--devices 1000] [--items 5000] [--turns 9] [--profile] [--by-ratings]

The device is a real `Device` with its store, in a process of its own. A second process plays the server and all other
devices of the cohort: their keys, signatures and the shares that they seal for the measured device are genuine, what
they send to each other is left out. The round is the plan's second one, whose table has eight columns for every item
(seven of audiences, one of biases); its public table was learned by the CPU engine from random ratings. Each turn has
a device of its own with 200 ratings; the first turn compiles and is not counted. `once` is what a device does
before its first round: it joins and fetches the catalogue. `--by-ratings` measures the table of devices with 0, 1, 20
and 300 ratings instead, because the server sees how long a device computes it.
"""

import argparse
import cProfile
import functools
import http.server
import itertools
import multiprocessing
import pstats
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measure import write_record

from hushrec import Device, wire
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.messages import Address, Catalogue, Enrolment, Envelope, Offer, Public, Receipt
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.item_columns import item_columns
from hushrec.protocols.masked.messages import Partners, Quorum, Survivors, announce
from hushrec.protocols.masked.protocol import Masked
from hushrec.protocols.masked.secagg import device as steps
from hushrec.protocols.masked.secagg.roster import Roster, Rules, bitmap, masks_text, partners_digest, survivors_text
from hushrec.protocols.masked.server_side import PHASES
from hushrec.protocols.masked.table import published_digest
from hushrec.randomness import SystemStream
from hushrec.service.certificates import self_signed
from hushrec.signing import device_id_of
from hushrec.simulation.training_problem import make_problem

RUN_ID, ROUND = "ab" * 16, 2
ATTRIBUTES, RATED = 18, 200
COUNTS = 0, 1, 20, 300
EPSILON = 10.0  # the smallest whole number for which a thousand devices learn audiences
OPTIONS = {"epsilon": EPSILON, "survivors": 0.8, "corrupt": 0.107, "reserve": 0.2}  # 100 neighbours of 1,000 devices


class World:
    """The offer, catalogue and public tables, and all devices of the cohort but the measured one."""

    def __init__(self, devices: int, n_items: int) -> None:
        rng = np.random.default_rng(0)
        self.ids = [str(item) for item in range(n_items)]
        flags = pl.DataFrame({f"kind={n}": rng.random(n_items) < 0.2 for n in range(ATTRIBUTES)})
        columns = item_columns(n_items, self.ids, flags)
        users = np.repeat(np.arange(devices), 20)
        items = np.concatenate([rng.choice(n_items, 20, replace=False) for _ in range(devices)])
        values = rng.integers(1, 6, len(users)).astype(float)
        protocol, model = Masked(**OPTIONS), GaussianProcess(columns)
        sizes = {"n_users": devices, "n_items": n_items}
        problem = make_problem(users, items, values, model=model, protocols=[protocol], seed=0, **sizes)
        engine = CpuMaskedEngine(problem)
        self.server = Ed25519PrivateKey.generate()
        self.columns, self.terms = columns, problem.terms
        self.offer = Offer(RUN_ID, "masked", "gp", OPTIONS, self.terms, self.server.public_key().public_bytes_raw())
        side = protocol.make_server(problem.terms, model, 0)
        engine.learner = side.learner
        self.tables = [wire.encode(self.public(0, side.public))]
        engine.run_round()
        self.tables.append(wire.encode(self.public(1, side.public)))
        self.table_digest = published_digest(wire.decode(self.tables[1], Public).by_name())

    def public(self, round_number: int, arrays: Any) -> Public:
        """A public table as devices download it."""
        return Public.of(RUN_ID, round_number, self.terms, arrays)


class Peers:
    """One attempt of the cohort, as the measured device sees it."""

    def __init__(self, world: World, name: bytes) -> None:
        rng, devices = SystemStream(), world.terms.priced.cohort.devices
        self.world, self.name = world, name
        self.announcement = announce(world.server, RUN_ID, ROUND, 1, world.terms.digest, world.table_digest)
        self.members = {}
        for _ in range(devices - 1):
            other, identity, secrets = rng.bytes(16), Ed25519PrivateKey.generate(), steps.draw_secrets(rng=rng)
            self.members[other] = (
                steps.make_keys(secrets, self.announcement.digest, other, identity), identity, secrets,
            )  # fmt: skip
        self.roster: Roster | None = None
        self.messages: dict[str, Any] = {"keys": self.announcement}

    def receive(self, phase: str, message: Any) -> None:
        """Prepare the message of the next phase."""
        if phase == "keys":
            keys = [keys for keys, _, _ in self.members.values()]
            entries = sorted([message, *keys], key=lambda one: one.device)
            self.roster = Roster(self.announcement.digest, tuple(entries))
            self.messages["shares"] = self.roster
        elif phase == "shares":
            self.messages["table"] = self.partners()
        elif phase == "table":
            self.messages["consent"] = self.survivors()
        elif phase == "consent":
            self.messages["unmask"] = self.quorum()

    @property
    def entries(self) -> tuple[Any, ...]:
        """The roster's entries."""
        assert self.roster is not None
        return self.roster.entries

    def partners(self) -> Partners:
        """Everybody sent shares; each other device drew the measured one with probability k/(n − 1)."""
        assert self.roster is not None
        rules, count, chance = self.world.terms.rules, len(self.entries), np.random.default_rng(0)
        own = next(place for place, entry in enumerate(self.entries) if entry.device == self.name)
        senders = [n for n in range(count) if n != own and chance.random() < rules.neighbours / (count - 1)]
        alone = Rules(rules.smallest, rules.most_corrupt, 1, 1)
        sealed = []
        for sender in senders:
            secrets = self.members[self.entries[sender].device][2]
            sealed.append(steps.seal_shares(secrets, self.roster, sender, [own], alone, rng=SystemStream())[own].sealed)
        return Partners(bitmap(range(count), count), np.array(senders), tuple(sealed))

    def survivors(self) -> Survivors:
        """Everybody's table arrived, with a signature."""
        assert self.roster is not None
        count, senders = len(self.entries), self.messages["table"].senders
        text = masks_text(partners_digest(self.roster, range(count)))
        signatures = tuple(self.members[self.entries[n].device][1].sign(text) for n in senders)
        return Survivors(bitmap(range(count), count), senders, signatures)

    def quorum(self) -> Quorum:
        """The signatures of as many survivors as are needed, all of other devices."""
        assert self.roster is not None
        count = len(self.entries)
        text = survivors_text(partners_digest(self.roster, range(count)), range(count), count)
        others = [n for n, entry in enumerate(self.entries) if entry.device != self.name]
        signers = others[: self.world.terms.rules.smallest]
        signatures = tuple(self.members[self.entries[n].device][1].sign(text) for n in signers)
        return Quorum(np.array(signers), signatures)


class Handler(http.server.BaseHTTPRequestHandler):
    """The requests of one device, one after another."""

    protocol_version = "HTTP/1.1"
    world: World
    peers: Peers
    phase = 0
    downloads = 0

    def do_GET(self) -> None:
        """The offer, the catalogue, a public table, or the message of the open phase."""
        kind = type(self)
        if self.path == "/v1/run":
            return self.reply(200, wire.encode(self.world.offer))
        if self.path.startswith("/v1/items"):
            ids = self.world.ids
            return self.reply(200, wire.encode(Catalogue(0, ids, ids, self.world.columns.taste)))
        if self.path == "/v1/public":
            kind.downloads += 1
            return self.reply(200, self.world.tables[kind.downloads > 1])
        phase = PHASES[kind.phase]
        place = Address(ROUND, 1, phase)
        return self.reply(200, wire.encode(Envelope.to(RUN_ID, place, self.peers.messages[phase])))

    def do_POST(self) -> None:
        """An enrolment, or a report."""
        kind, body = type(self), self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/devices":
            name = bytes.fromhex(device_id_of(wire.decode(body, Enrolment).public_key))
            kind.peers, kind.phase, kind.downloads = Peers(self.world, name), 0, 0
            return self.reply(201, wire.encode(self.world.offer))
        sent = wire.decode(body, Envelope)
        self.peers.receive(sent.phase, sent.message)
        kind.phase += 1
        return self.reply(200, wire.encode(Receipt.of(sent.address, repeated=False)))

    def reply(self, status: int, body: bytes) -> None:
        """Send bytes."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def serve(place: Path, devices: int, n_items: int, ready: Any) -> None:
    """Play the server and the others, in a process of their own."""
    Handler.world = World(devices, n_items)
    _, certificate, key = self_signed(place, ["127.0.0.1"])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rules, terms = Handler.world.terms.rules, Handler.world.terms
    ready.send((server.server_address[1], rules.neighbours, terms.table_size(ROUND)))
    ready.recv()  # until the measurement is over


@contextmanager
def others(place: Path, devices: int, n_items: int) -> Iterator[tuple[int, int, int]]:
    """The port of the other process, the number of neighbours, and the numbers of a table."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(place, devices, n_items, there))
    process.start()
    try:
        yield here.recv()
    finally:
        here.send(None)
        process.join(timeout=30)


def one_turn(
    folder: Path, port: int, ca: Path, n_items: int, profile: cProfile.Profile | None, count: int = RATED
) -> dict[str, float]:
    """Milliseconds of processor time by phase, of one device."""
    spent, clock = {}, time.process_time
    rated = np.random.default_rng(1).choice(n_items, count, replace=False)
    with Device.create(folder, epsilon=EPSILON) as device:
        device.add_ratings({str(item): 1.0 + item % 5 for item in rated})
        started = clock()
        device.join(f"https://127.0.0.1:{port}", ca=ca)
        spent["once"] = 1000 * (clock() - started)
        for phase in PHASES:
            started = clock()
            if profile is not None:
                profile.enable()
            assert device.step() == "reported"
            if profile is not None:
                profile.disable()
            spent[phase] = 1000 * (clock() - started)
        assert device.budget()["rounds"] == (count > 0)
    return spent


def main() -> None:
    """Measure the turns, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, and keep no record")
    parser.add_argument("--by-ratings", action="store_true", help="measure tables by number of ratings")
    options = parser.parse_args()
    profile = cProfile.Profile(time.process_time) if options.profile else None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with others(place, options.devices, options.items) as (port, neighbours, numbers):
            turn = functools.partial(one_turn, port=port, ca=place / "certificate.pem", n_items=options.items)
            turn(place / "first", profile=None)
            counts = COUNTS if options.by_ratings else (RATED,)
            turns = {count: [] for count in counts}
            for n, count in itertools.product(range(options.turns), counts):
                turns[count].append(turn(place / f"device-{n}-{count}", profile=profile, count=count))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    settings = vars(options) | {"neighbours drawn": neighbours, "numbers": numbers}
    if options.by_ratings:
        tables = {str(count): median(one["table"] for one in own) for count, own in turns.items()}
        result = {"settings": settings, "median milliseconds of table": tables}
    else:
        totals = [sum(one[phase] for phase in PHASES) for one in turns[RATED]]
        middle = {name: median(one[name] for one in turns[RATED]) for name in turns[RATED][0]}
        result = {
            "settings": settings | {"ratings": RATED},
            "median milliseconds": middle | {"round": median(totals)},
            "round milliseconds, all turns": [round(total, 2) for total in totals],
        }
    if options.profile:
        print(result)
    else:
        write_record("masked-device-by-ratings" if options.by_ratings else "masked-device", result)


def median(values: Iterable[float]) -> float:
    """The median, as records keep it."""
    return round(statistics.median(values), 2)


if __name__ == "__main__":
    main()
