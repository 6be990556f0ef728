"""Prometheus metrics and the event log. Neither holds a device id, a network address or a reported value."""

import json
import logging
import traceback
from collections import deque
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

LOGGER = logging.getLogger("hushrec.service")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_MOST_TIMED = 10_000
_USUAL = ("run-over", "phase-closed")  # codes of refusals of late requests, which every healthy run has

disable_created_metrics()  # type: ignore[no-untyped-call]  # no `_created` series, which nothing here uses


def log_event(event: str, **facts: object) -> None:
    """Log an event and its facts as one line of JSON."""
    LOGGER.info(json.dumps({"event": event, **facts}))


class JsonLines(logging.Formatter):
    """A log formatter that writes each record as one JSON object with its time, including the web server's records."""

    def format(self, record: logging.LogRecord) -> str:
        words = record.getMessage()
        facts = json.loads(words) if record.name == LOGGER.name else {"event": "message", "text": words}
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info  # without the message, which may name a device
            facts |= {"error": kind.__name__, "trace": "".join(traceback.format_tb(trace))}
        return json.dumps({"time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), **facts})


class Monitor:
    """The metrics of this process since its start; `docs/service.md` lists every series."""

    def __init__(self) -> None:
        self._series = CollectorRegistry()
        self._reports = self._counter("reports", "Reports with a receipt, by kind: stored or repeated.", "kind")
        self._rounds = self._counter("rounds_closed", "Rounds closed.")
        self._refusals = self._counter("refusals", "Requests refused.", "code")
        words = "Seconds from a report's request to its receipt."
        self._seconds = Histogram("hushrec_report_seconds", words, buckets=_BUCKETS, registry=self._series)
        self._since_close: deque[float] = deque(maxlen=_MOST_TIMED)
        self.refusals = 0  # refused requests, without those that `_USUAL` lists

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"hushrec_{name}", words, labels, registry=self._series)

    def watch(self, name: str, words: str, value: Callable[[], float]) -> None:
        """Export the gauge `hushrec_NAME`, described by `words`; `value` is called whenever the metrics are read."""
        Gauge(f"hushrec_{name}", words, registry=self._series).set_function(value)

    def exposition(self) -> bytes:
        return generate_latest(self._series)

    def refused(self, code: str) -> None:
        self._refusals.labels(code).inc()
        self.refusals += code not in _USUAL

    def reported(self, seconds: float, *, repeated: bool) -> None:
        """Count a report whose receipt was sent `seconds` after its request.

        `repeated` says whether the same report was already stored.
        """
        self._reports.labels("repeated" if repeated else "stored").inc()
        self._seconds.observe(seconds)
        self._since_close.append(seconds)

    @property
    def latencies(self) -> list[float]:
        """Seconds from request to receipt, for each report that this process received since it last closed a round.

        The list has at most the last `_MOST_TIMED` reports.
        """
        return list(self._since_close)

    def round_closed(self, round_number: int, facts: Mapping[str, object]) -> None:
        """Count a closed round, log it with these facts, and clear `latencies`."""
        self._rounds.inc()
        self._since_close.clear()
        log_event("round-closed", round=round_number, **facts)
