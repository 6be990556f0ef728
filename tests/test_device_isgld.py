"""A person joins a run of `isgld`, whose options they choose in the shell, and sees what it costs."""

from pathlib import Path

import pytest
from command import run
from service_kit import OPEN_SOCKETS, ROUND_WAIT, live_server, small_settings

from hushrec import Device
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError

pytestmark = OPEN_SOCKETS


@pytest.mark.parametrize("command", ["init", "budget"])
def test_a_protocol_without_an_option_is_refused(tmp_path: Path, command: str) -> None:
    """Nothing would be set: the sentence names the options, and nothing is created."""
    store = ("--store", str(tmp_path / "store"))
    if command == "budget":
        run("device", "init", *store)
    for name, options in (("isgld", "(epsilon, clamp)"), ("plain", "none that a person chooses")):
        outcome = run("device", command, "--protocol", name, *store)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1), outcome.err
        assert f"protocol {name} must be given together with one of its options" in outcome.err
        assert options in outcome.err
    assert (tmp_path / "store").exists() == (command == "budget")


def test_a_person_joins_isgld_with_options_of_the_shell(tmp_path: Path) -> None:
    """Before an option of isgld is chosen the device does not join; then its budget is about the value of a rating."""
    terms = {"protocol": "isgld", "rounds": 2}
    store = ("--store", str(tmp_path / "store"))
    run("device", "init", "--rate", "item-1=5", "--rate", "item-2=1", *store)
    with live_server(tmp_path, small_settings(terms=terms, rounds={"min_devices": 1})) as live:
        with Device(tmp_path / "store") as device, pytest.raises(RemoteProtocolError, match="clamp"):
            device.join(live.url)
        assert (
            "isgld: epsilon 2, clamp 1"
            in run("device", "budget", "--protocol", "isgld", "--epsilon", "2", "--clamp", *store).out
        )
        with Device(tmp_path / "store") as device:
            device.join(live.url)
            while device.step(ROUND_WAIT) != "reported":
                pass
            statement = device.budget()
            assert (statement["spent"], statement["limit"], statement["rounds"]) == (2.0, None, None)
            with pytest.raises(LocalProtocolError, match="isgld"):
                device.choose("isgld", epsilon=100)  # weaker noise for later ratings
            with pytest.raises(ParameterError, match="limit"):
                device.raise_budget(102)
        shown = run("device", "budget", *store).out
        for words in ("spent epsilon 2\n", "covers: the value of one rating", "Noise was drawn once"):
            assert words in shown
        with Device(tmp_path / "store") as device:
            device.leave()
        assert "spent epsilon 2\n" in run("device", "budget", *store).out
