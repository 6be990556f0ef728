"""A notice to the user that the first round takes longer, because Numba must compile kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from hushrec.engines import Remark


class CompilationNotice(event.Listener):
    """A Numba event listener that calls `remark` once if kernels are compiled during an engine's first round."""

    def __init__(self, remark: Remark | None) -> None:
        self._remark = remark

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Call `remark` if kernels are compiled inside the `with` block. Only the first block can give the notice."""
        if self._remark is None:
            yield
            return
        with event.install_listener("numba:compile", self):
            yield
        self._remark = None

    def on_start(self, event: Any) -> None:
        if self._remark is not None:
            self._remark("compiling for this machine, which takes up to a minute; later runs start at once")
            self._remark = None

    def on_end(self, event: Any) -> None:
        """Do nothing when compilation ends."""
