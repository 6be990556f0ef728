"""How slow this machine is just now, so that a bound on computing time means the same on every machine."""

import time

REFERENCE_SECONDS = 0.023  # of `_work` on the machine for which the bounds are written


def slowness() -> float:
    """How many times as long a fixed piece of work takes here, in processor time; 1 where it takes less."""
    best = min(_seconds() for _ in range(5))
    return max(1.0, best / REFERENCE_SECONDS)


def _seconds() -> float:
    started = time.thread_time()
    _work()
    return time.thread_time() - started


def _work() -> int:
    """Makes, sorts and looks through words: what an interpreter does all day."""
    words = sorted(f"word {n * 7919 % 50_000}" for n in range(50_000))
    return sum("99" in word for word in words)
