"""Which addresses the processes below this one talk to or listen on, as the kernel knows them."""

import os
import socket
import struct
import threading
from pathlib import Path

LISTEN = "0A"


class Watch:
    """Looks at the sockets of all descendants of this process every few milliseconds; `seen` holds what it saw."""

    def __init__(self, every: float = 0.02) -> None:
        self.seen: set[tuple[str, str]] = set()  # (state, address): the local one of a listener, else the remote one
        self._every, self._stop = every, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def outside(self) -> set[tuple[str, str]]:
        """What is not on the loopback address."""
        return {(state, address) for state, address in self.seen if not address.startswith("127.") and address != "::1"}

    def _look(self) -> None:
        while not self._stop.wait(self._every):
            inodes = {inode for process in descendants(os.getpid()) for inode in sockets_of(process)}
            for table in ("tcp", "tcp6"):
                self.seen |= {(state, address) for inode, state, address in rows(table) if inode in inodes}


def descendants(ancestor: int) -> set[int]:
    """Processes that this one started, and those that they started; not itself."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended
    found = {ancestor}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {ancestor}


def sockets_of(process: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    found = set()
    try:
        for entry in (Path("/proc") / str(process) / "fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass  # it ended
    return found


def rows(table: str) -> list[tuple[str, str, str]]:
    """Inode, state and address of every socket: where it listens, or whom it talks to."""
    found = []
    for line in (Path("/proc/net") / table).read_text().splitlines()[1:]:
        fields = line.split()
        state = fields[3]
        found.append((fields[9], state, readable(fields[1 if state == LISTEN else 2].partition(":")[0])))
    return found


def readable(words: str) -> str:
    """An address as people write it, from the kernel's words of 32 bits; IPv4 inside IPv6 as IPv4."""
    packed = b"".join(
        struct.pack("=I", int(words[start : start + 8], 16)) for start in range(0, len(words), 8)
    )  # the kernel prints each word as a number of this machine
    text = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return text.removeprefix("::ffff:") if "." in text else text
