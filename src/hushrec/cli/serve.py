"""`hushrec serve`."""

from pathlib import Path
from typing import Annotated

import typer

from hushrec.cli.app import app, say


@app.command(epilog="Example: hushrec serve --items films.csv --open --self-signed")
def serve(
    items: Annotated[Path, typer.Option(help="The catalogue: a table with id and title, or a publisher's own file.")],
    config: Annotated[Path | None, typer.Option(help="A TOML file: terms, rounds and limits.")] = None,
    database: Annotated[
        str, typer.Option(help="Where the run is kept: sqlite:///FILE or postgresql://USER@HOST/NAME.")
    ] = "sqlite:///hushrec-server.sqlite",
    host: Annotated[str, typer.Option(help="The address to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to bind to.")] = 8470,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    self_signed: Annotated[bool, typer.Option("--self-signed", help="Make a certificate, for trying out.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plain HTTP beyond this machine.")] = False,
    open_enrolment: Annotated[bool, typer.Option("--open", help="Let devices join without an invitation.")] = False,
    invitations: Annotated[int, typer.Option(help="Print so many new invitation codes.", min=0)] = 0,
    state_dir: Annotated[
        Path | None, typer.Option(help="Where the admin's token and a self-signed certificate go.  [default: .]")
    ] = None,
) -> None:
    """Serve a run to devices: item vectors go out, reports come in, only their sum is kept."""
    from hushrec.data.items import list_items
    from hushrec.service.settings import Settings, read_settings

    settings = Settings() if config is None else read_settings(config)
    if open_enrolment:
        settings = settings.model_copy(update={"open_enrolment": True})
    ids, titles = list_items(items)
    _serve(
        settings,
        database,
        ids,
        titles,
        host=host,
        port=port,
        tls=_certificate(tls_cert, tls_key, self_signed, state_dir or Path(), host),
        insecure=insecure,
        invitations=invitations,
        folder=state_dir or Path(),
    )


def _certificate(
    cert: Path | None, key: Path | None, self_signed: bool, folder: Path, host: str
) -> tuple[Path, Path] | None:
    from hushrec.errors import ParameterError
    from hushrec.service import serving

    if (cert is None) != (key is None) or (self_signed and cert is not None):
        raise ParameterError("TLS needs --tls-cert with --tls-key, or --self-signed alone.")
    if self_signed:
        made = serving.self_signed(folder, host)
        say(f"devices can trust this server with --ca {made[0]}")
        return made
    if cert is None or key is None:
        return None
    for path in (cert, key):
        if not path.is_file():
            raise ParameterError(f"--tls-cert and --tls-key must be readable files; {path} is not.")
    return cert, key


def _serve(
    settings: "object",
    database: str,
    ids: list[str],
    titles: list[str],
    *,
    host: str,
    port: int,
    tls: tuple[Path, Path] | None,
    insecure: bool,
    invitations: int,
    folder: Path,
) -> None:
    import asyncio
    import logging
    import sys

    from hushrec.service import serving
    from hushrec.service.app import make_app
    from hushrec.service.monitor import Monitor
    from hushrec.service.rounds import Rounds
    from hushrec.service.settings import Settings
    from hushrec.service.setup import prepare_run
    from hushrec.service.storage import Storage

    assert isinstance(settings, Settings)
    serving.check_binding(host, tls=tls is not None, insecure=insecure)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    storage = Storage(database)
    token = prepare_run(storage, settings.terms, ids, titles)
    if token is not None:
        folder.mkdir(parents=True, exist_ok=True)
        serving.write_secret(folder / "admin-token", token.encode())
        say(f"the admin's token is in {folder / 'admin-token'}; it is kept nowhere else")
    monitor = Monitor()
    rounds = Rounds(storage, settings, monitor)
    for code in asyncio.run(rounds.registry.invite(invitations)) if invitations else []:
        print(code)
    made = make_app(storage, rounds, monitor, settings.limits)
    say(f"serving {len(ids)} items on {'https' if tls else 'http'}://{host}:{port}")
    server = serving.make_server(
        made,
        host=host,
        port=port,
        certificate=None if tls is None else tls[0],
        key=None if tls is None else tls[1],
        head_seconds=settings.limits.body_seconds,
    )
    server.run()
