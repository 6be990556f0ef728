"""The command `hushrec serve`: run a server for devices."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hushrec.cli.app import app, counted, say
from hushrec.cli.options import Port
from hushrec.errors import ParameterError

if TYPE_CHECKING:
    from hushrec.service.rounds import Rounds
    from hushrec.service.settings import Settings
    from hushrec.service.setup import Items
    from hushrec.service.storage import Storage


@app.command(epilog="Example: hushrec serve --items films.csv --open --self-signed")
def serve(
    items: Annotated[Path, Option(help="Catalogue: a table with id and title, or the item file of a named data set.")],
    config: Annotated[
        Path | None,
        Option(
            help="TOML file with the tables [terms], [rounds] and [limits].  [default: no file; all settings"
            " keep their defaults]"
        ),
    ] = None,
    devices: Annotated[
        int | None,
        Option(
            help="Number of devices to expect in one round; sets terms.expected_devices. masked: this is also the"
            " largest number of devices in one sum, and at most 10000; by default a round opens when 80 % of this"
            " number are online."
            "  [default: 1000]",
            min=1,
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        Option(
            help="Privacy budget of one person's whole profile; sets terms.epsilon. inf: no noise; a device can"
            " then join only if its person has set epsilon to inf, or to 0, with which it sends only zeros."
            "  [default: 8]"
        ),
    ] = None,
    run: Annotated[
        int | None,
        Option(
            help="Number of the run. To begin a next run, give the number of the run in the database plus one; every"
            " device must agree to a next run.  [default: continue the run in the database]",
            min=1,
        ),
    ] = None,
    model: Annotated[str | None, Option(help="Model to train; sets terms.model.  [default: gp]")] = None,
    database: Annotated[
        str, Option(help="Database of the run: sqlite:///FILE or postgresql://USER@HOST/NAME.")
    ] = "sqlite:///hushrec-server.sqlite",
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8470,
    tls_cert: Annotated[Path | None, Option(help="PEM file of the server's TLS certificate.")] = None,
    tls_key: Annotated[Path | None, Option(help="PEM file of the certificate's private key.")] = None,
    self_signed: Annotated[
        bool,
        Option("--self-signed", help="Create a TLS certificate for tests; devices trust it with --ca certificate.pem."),
    ] = False,
    name: Annotated[
        list[str] | None,
        Option(
            help="With --self-signed: a further host name or address by which devices reach this server, besides"
            " localhost, 127.0.0.1 and --host; may be repeated."
        ),
    ] = None,
    insecure: Annotated[
        bool, Option("--insecure", help="Allow unencrypted HTTP from other machines, such as a proxy that handles TLS.")
    ] = False,
    open_enrolment: Annotated[
        bool,
        Option(
            "--open",
            help="Let devices join without an invitation; sets open_enrolment.  [default: every device needs one]",
        ),
    ] = False,
    invitations: Annotated[int, Option(help="Number of new invitation codes to print.", min=0)] = 0,
    new_admin_token: Annotated[
        bool, Option("--new-admin-token", help="Replace the admin token, if it was lost or disclosed.")
    ] = False,
    workers: Annotated[
        int, Option(help="Number of processes that serve this address; more than one needs PostgreSQL.", min=1)
    ] = 1,
    state_dir: Annotated[
        Path | None, Option(help="Folder for the admin token and the files of --self-signed.  [default: .]")
    ] = None,
) -> None:
    """Serve a training run: collect devices' reports, learn from them, publish the result and delete the reports."""
    import asyncio
    from contextlib import closing

    from hushrec.open_files import allow_open_files
    from hushrec.service import serving
    from hushrec.service.certificates import certified_names
    from hushrec.service.rounds import Rounds
    from hushrec.service.settings import read_settings
    from hushrec.service.storage import Storage
    from hushrec.service.workers import Work, log_as_json, supervise

    given = {"expected_devices": devices, "epsilon": epsilon, "model": model, "run": run}
    settings = read_settings(config, **{name: value for name, value in given.items() if value is not None})
    if open_enrolment:
        settings = settings.model_copy(update={"open_enrolment": True})
    catalogue, folder = _read_items(items, settings), state_dir or Path()
    tls = _certificate(tls_cert, tls_key, self_signed, folder, certified_names(host, name or []))
    serving.check_binding(host, tls=tls is not None, insecure=insecure)
    if workers > 1 and database.startswith("sqlite"):
        raise ParameterError(
            f"--workers must be 1 with SQLite, got {workers}. For more workers, use PostgreSQL with --database."
        )
    log_as_json()
    allow_open_files()
    file = database.removeprefix("sqlite:///")  # refuse before a new file of SQLite is created
    _refuse_existing_token(folder / "admin-token", has_run=file == database or Path(file).exists())
    with serving.bind(host, port) as listening:
        work = Work(settings, database, listening, tls)
        with closing(Storage(database)) as storage:
            _prepare(storage, settings, catalogue, folder / "admin-token", new_admin_token)
            rounds = Rounds(storage, settings)
            for code in asyncio.run(rounds.registry.invite(invitations)) if invitations else []:
                print(code)
            address = f"{'https' if tls else 'http'}://{host}:{listening.getsockname()[1]}"
            many = f" with {workers} workers" if workers > 1 else ""
            offer = rounds.offer
            kind = f"(protocol {offer.protocol}, model {offer.model})"
            say(f"serving {counted(len(rounds.catalogue), 'item')} on {address}{many} {kind}")
            for notice in _notices(rounds, settings.rounds.min_devices):
                say(notice)
            if workers == 1:
                work.run(rounds)
        if workers > 1:
            supervise(workers, work)


def _read_items(path: Path, settings: "Settings") -> "Items":
    """Return the catalogue in the file `path`, with item columns if the run's model learns from them."""
    from hushrec.data.items import list_items, read_items
    from hushrec.data.ratings import Ratings
    from hushrec.models import find_model
    from hushrec.options import imported
    from hushrec.service.setup import Items

    ids, titles = list_items(path)
    facts = find_model(settings.terms.model_name).item_facts
    if facts is None:
        return Items(ids, titles)
    _, attributes, catalogue = read_items(path, ids)
    for notice in catalogue.notices:
        say(notice)
    known = Ratings.of_items(path.name, ids, titles=titles, attributes=attributes, catalogue=catalogue)
    return Items.of(ids, titles, imported(facts)(known, settings.terms.options))


def _certificate(
    cert: Path | None, key: Path | None, self_signed: bool, folder: Path, names: list[str]
) -> tuple[Path, Path] | None:
    from hushrec.service import certificates

    if (cert is None) != (key is None) or (self_signed and cert is not None):
        raise ParameterError("TLS needs either both --tls-cert and --tls-key, or --self-signed without them.")
    if self_signed:
        authority, *made = certificates.self_signed(folder, names)
        say(f"devices can trust this server with --ca {authority}, at {', '.join(names)}")
        return made[0], made[1]
    if cert is None or key is None:
        return None
    warning = certificates.check_certificate(cert, key)
    if warning is not None:
        say(f"warning: {warning}")
    return cert, key


def _notices(rounds: "Rounds", min_devices: int) -> list[str]:
    """Return notices for the operator: how many devices a round waits for, the accuracy to expect, and warnings."""
    protocol, terms = rounds.protocol, rounds.offer.terms
    expected = protocol.expected_devices(terms)
    expects = None if expected is None else protocol.expectation(terms, rounds.offer.model, expected)
    fits = expected is not None and rounds.fewest_devices <= expected
    of = f" of the {expected:,} that this run expects" if fits else ""
    option = "rounds.min_devices of --config sets this"
    if rounds.fewest_devices > min_devices:
        option = "--devices sets this before a run begins"
    waits = f"a round opens when {counted(rounds.fewest_devices, 'device is', 'devices are')} online{of}; {option}"
    return [waits, *([] if expects is None else [expects]), *protocol.notices(terms)]


def _refuse_existing_token(secret: Path, *, has_run: bool) -> None:
    """Raise `ParameterError` if `secret`, the file for the admin token, exists but the database has no run.

    A new run would overwrite the file, which may be the only copy of another run's token.
    """
    if secret.exists() and not has_run:
        raise ParameterError(
            f"{secret} must not exist before the first run of this database, which writes its admin token there. The"
            " file may hold the token of another run: move it away, or give another folder as --state-dir."
        )


def _prepare(storage: "Storage", settings: "Settings", items: "Items", secret: Path, new_token: bool) -> None:
    """Create the first run in the database, begin the next run, or continue the stored run.

    The first run gets an admin token, which later runs keep. With `new_token`, a new token replaces it. A new token is
    written to the file `secret`.
    """
    from hushrec.service import certificates
    from hushrec.service.catalogue import changed_titles, count_missing
    from hushrec.service.setup import prepare_run, renew_admin_token, stored_number

    number = stored_number(storage)
    _refuse_existing_token(secret, has_run=number is not None)
    begins = number is not None and settings.terms.run not in (None, number)
    changed = storage.at_once(lambda connection: changed_titles(connection, items.ids, items.titles))
    missing = storage.at_once(lambda connection: count_missing(connection, items.ids))
    if changed and not begins:
        differ = counted(changed, "title of the file differs", "titles of the file differ")
        say(f"{differ} from the titles of this run: devices keep the titles that they have.")
    token = prepare_run(storage, settings.terms, items)
    if missing and not begins:
        absent = counted(missing, "item of this run is", "items of this run are")
        say(f"{absent} missing from the items file. No item leaves a run: devices keep them until a next run.")
    if begins:
        say(f"run {settings.terms.run} begins; devices of the previous run join it with `hushrec device join --next`")
    if new_token and token is None:
        token = renew_admin_token(storage)
    if token is not None:
        secret.parent.mkdir(parents=True, exist_ok=True)
        certificates.write_secret(secret, token.encode())
        say(f"the admin token was written to {secret}; no other copy of it exists")
