"""Python in docs/ runs as it is printed there."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from service_kit import OPEN_SOCKETS, live_server, play, small_settings, wait_for

from hushrec import Device
from hushrec.device import session

ROOT = Path(__file__).parents[1]
pytestmark = OPEN_SOCKETS


def snippet() -> str:
    """The block that embeds a device in an app."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "service.md").read_text("utf-8"), re.DOTALL)
    return str(code)


def test_the_embedding_snippet_works_alone_interrupted_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a server that opens no round for a while; Ctrl-C after two rounds; then `Device("store")`, to the end.

    Only the port differs from what is printed, and the 30 s of waiting are a twentieth of a second.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "LONGEST_WAIT", 0.05)
    outcomes: list[str] = []
    step = Device.step

    def counted(device: Device, *arguments: Any, **options: Any) -> str:
        if threading.current_thread() is not threading.main_thread():
            return step(device, *arguments, **options)  # the other device's
        outcomes.append(step(device, *arguments, **options))
        if outcomes.count("reported") == 2 and outcomes[-1] == "reported":
            raise KeyboardInterrupt
        return outcomes[-1]

    ids = [str(n) for n in range(40, 60)]
    with live_server(tmp_path, small_settings(terms={"rounds": 5}), tls=True, ids=ids) as live:
        code = snippet()
        assert code.count("https://127.0.0.1:8470") == 1
        code = code.replace("https://127.0.0.1:8470", live.url)

        def others() -> None:
            wait_for(lambda: "no round" in outcomes)
            with Device.create(tmp_path / "other") as other:
                other.add_ratings({str(n): 1 + n % 5 for n in range(40, 50)})
                other.join(live.url, ca=live.ca)
                play([other])

        thread = threading.Thread(target=others, daemon=True)
        thread.start()
        monkeypatch.setattr(Device, "step", counted)
        with pytest.raises(KeyboardInterrupt):
            exec(compile(code, "service.md", "exec"), {})
        assert "no round" in outcomes
        later = re.sub(r"Device\.create\(.*?\) as device:  # later: (.*)", r"\1 as device:", code)
        assert later != code
        exec(compile(later, "service.md", "exec"), {})
        thread.join(timeout=300)
    assert outcomes[-1] == "run over"
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1  # the end, however many phases were reported in
    assert printed[0].startswith("8.0 [")
    with Device(tmp_path / "store") as device:
        assert device.budget()["rounds"] == 5
