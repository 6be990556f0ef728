"""A process that has everything imported and forks a server, or a device, per line of standard input.

Real processes that start in milliseconds, so that a test can kill many of them. Talks JSON, one object a line:

    {"serve": [arguments of hushrec serve]}                            → {"pid": …}
    {"step": store, "times": n, "kill_at": k, "seed": [seed, number]}  → {"status": exit status, or −signal}
    {"reap": pid}                                                      → {"status": …}

A device that steps no times sends the report that its store holds, and asks for no other message.
"""

import json
import os
import signal
import sys
from typing import Any

import psycopg  # noqa: F401
import pydantic.v1  # noqa: F401
import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401

import hushrec.cli
import hushrec.data.items
import hushrec.device.device
import hushrec.models.gaussian_process
import hushrec.protocols.masked.gp.learning
import hushrec.protocols.masked.gp.server
import hushrec.protocols.masked.protocol
import hushrec.service.app
import hushrec.service.certificates
import hushrec.service.serving
import hushrec.service.setup
import hushrec.service.workers
from hushrec.client import Client
from hushrec.device.session import Session
from hushrec.device.store import Store
from hushrec.device.transport import BlockingDriver
from hushrec.randomness import SeededRandomness


def main() -> None:
    """Forks as told until its input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            reply = {"status": _status(order["reap"])}
        else:
            child = os.fork()
            if child == 0:
                _run(order)
            reply = {"pid": child} if "serve" in order else {"status": _status(child)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run(order: dict[str, object]) -> None:
    """The child. Never returns."""
    code = 1
    try:
        os.setsid()
        log = os.open(str(order["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if "serve" in order:
            sys.argv = ["hushrec", "serve", *order["serve"]]  # type: ignore[misc]
            hushrec.cli.main()
        else:
            if "seed" in order:
                _seed(*order["seed"])  # type: ignore[misc]
            _step(str(order["step"]), int(order["times"]), int(order["kill_at"]))  # type: ignore[call-overload]
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _seed(seed: int, number: int) -> None:
    """Let the device draw what the simulated device of its number draws."""
    make_client = Session.make_client

    def make_seeded(session: Session, *given: Any) -> Client:
        client = make_client(session, *given)
        client._randomness = SeededRandomness(seed, number)
        return client

    Session.make_client = make_seeded  # type: ignore[method-assign]


def _step(folder: str, times: int, kill_at: int) -> None:
    """Steps a device, and kills it before the k-th thing that it does to its disk or its server."""
    done = 0

    def count(function: object) -> object:
        def counted(*arguments: object, **named: object) -> object:
            nonlocal done
            done += 1
            if done == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)  # type: ignore[operator]

        return counted

    Store.put = count(Store.put)  # type: ignore[method-assign, assignment]
    Store.drop = count(Store.drop)  # type: ignore[method-assign, assignment]
    BlockingDriver._make = count(BlockingDriver._make)  # type: ignore[method-assign, assignment]
    BlockingDriver._reply = count(BlockingDriver._reply)  # type: ignore[method-assign, assignment]
    Store.get = count(Store.get)  # type: ignore[method-assign, assignment]
    with hushrec.device.device.Device(folder) as device:
        if times == 0:
            device._driver().run(device._session._send_outbox())
        for _ in range(times):
            device.step(wait=40)


if __name__ == "__main__":
    main()
