"""Short summaries of a finished run, as one line and as an HTML table. They contain no ratings.

The HTML is made without Jinja2, which is an optional dependency.
"""

from html import escape
from typing import Any

from hushrec.evaluate import HEADINGS
from hushrec.protocols import find_protocol
from hushrec.simulation.results import Result


def in_one_line(result: Result) -> str:
    """Return one line with the model, the data's size, the privacy budget, and the first test metric if measured."""
    record, data = result.record, result.record["data"]
    protects = find_protocol(record["protocol"]).wording.protects(record["budget"])
    trained = f"{record['model']} on {data['users']} users × {data['items']} items, {data['train']} ratings"
    measured = ", ".join(f"{name} {value:.3f}" for name, value in list(record["metrics"].items())[:1])
    return f"{trained}; {protects}" + (f"; test {measured}" if measured else "")


def as_html(result: Result | None, shown: str) -> str:
    """Return an HTML summary of a result.

    If `result` is None, return `shown`, the recommender's `repr`, with a note that it is not fitted.
    """
    if result is None:
        return f"<code>{escape(shown)}</code> (not fitted)"
    record = result.record
    wording = find_protocol(record["protocol"]).wording
    budget = "".join(f"<li>{escape(line)}</li>" for line in wording.numbers(record["budget"]))
    budget += "".join(f"<li>not covered: {escape(line)}</li>" for line in record["budget"]["not_covered"])
    return (
        f"<p><strong>{escape(record['protocol'])}</strong>, {escape(in_one_line(result))}</p>"
        f"{_metrics_table(record)}<p>Budget: {escape(record['budget']['unit'])}</p><ul>{budget}</ul>"
    )


def _metrics_table(record: dict[str, Any]) -> str:
    if not record["metrics"]:
        return "<p>Trained on every rating, with none held out. Call <code>measure</code> for the accuracy.</p>"
    columns = [name for name in HEADINGS if name in record["metrics"]]
    rows = {"this run": record["metrics"], **record["comparisons"], **record["baselines"]}
    head = "".join(f"<th>{HEADINGS[name]}</th>" for name in columns)
    body = "".join(
        f"<tr><th>{escape(label.replace('_', ' '))}</th>{''.join(_cell(metrics.get(name)) for name in columns)}</tr>"
        for label, metrics in rows.items()
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: float | None) -> str:
    return "<td></td>" if value is None else f"<td>{value:.3f}</td>"
