"""What an operator can watch: counters for Prometheus, and a log of events. No device, address or value is in it."""

import json
import logging
import traceback
from collections import Counter, deque
from collections.abc import Mapping

from hushrec.service.history import Latency

LOGGER = logging.getLogger("hushrec.service")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_MOST_TIMED = 10_000
_USUAL = ("run-over", "round-closed")  # refusals of a healthy run: a device asks once more, or comes too late


class JsonLines(logging.Formatter):
    """Every line of the log as one JSON object with its time; what others log, the web server above all, too."""

    def format(self, record: logging.LogRecord) -> str:
        words = record.getMessage()
        facts = json.loads(words) if record.name == LOGGER.name else {"event": "message", "text": words}
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info  # without its words: they may name a device
            facts |= {"error": kind.__name__, "trace": "".join(traceback.format_tb(trace))}
        return json.dumps({"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), **facts})


class Monitor:
    """Counts since the start of this process."""

    def __init__(self) -> None:
        self._refusals: Counter[str] = Counter()
        self._answer_seconds: Counter[float] = Counter()
        self._answer_sum = 0.0
        self._since_close: deque[float] = deque(maxlen=_MOST_TIMED)
        self.answers_stored = 0
        self.answers_repeated = 0
        self.rounds_closed = 0

    def log(self, event: str, **facts: object) -> None:
        """One line of JSON."""
        LOGGER.info(json.dumps({"event": event, **facts}))

    def refused(self, kind: str) -> None:
        self._refusals[kind] += 1

    def answered(self, seconds: float, *, repeated: bool) -> None:
        """An answer was acknowledged, so many seconds after its request came in."""
        self.answers_stored += not repeated
        self.answers_repeated += repeated
        self._answer_sum += seconds
        self._since_close.append(seconds)
        self._answer_seconds[next((bound for bound in _BUCKETS if seconds <= bound), float("inf"))] += 1

    @property
    def refusals(self) -> int:
        """Requests refused, other than those of a healthy run."""
        return self._refusals.total() - sum(self._refusals[kind] for kind in _USUAL)

    def latency(self) -> Latency:
        """Of the answers acknowledged since the last round closed; the one that closes a round counts for the next."""
        return Latency.of(list(self._since_close))

    def round_closed(self, round_number: int, answers: int, seconds: float) -> None:
        self.rounds_closed += 1
        self._since_close.clear()
        self.log("round-closed", round=round_number, answers=answers, seconds=round(seconds, 3))

    def exposition(self, gauges: Mapping[str, float]) -> str:
        """The text format of Prometheus."""
        lines = [f"# TYPE hushrec_{name} gauge\nhushrec_{name} {value}" for name, value in gauges.items()]
        lines += [
            f"# TYPE hushrec_{name}_total counter\nhushrec_{name}_total {getattr(self, name)}"
            for name in ("answers_stored", "answers_repeated", "rounds_closed")
        ]
        lines.append("# TYPE hushrec_refusals_total counter")
        lines += [f'hushrec_refusals_total{{kind="{kind}"}} {count}' for kind, count in sorted(self._refusals.items())]
        lines.append("# TYPE hushrec_answer_seconds histogram")
        total = 0
        for bound in (*_BUCKETS, float("inf")):
            total += self._answer_seconds[bound]
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'hushrec_answer_seconds_bucket{{le="{label}"}} {total}')
        lines += [f"hushrec_answer_seconds_sum {self._answer_sum}", f"hushrec_answer_seconds_count {total}"]
        return "\n".join(lines) + "\n"
