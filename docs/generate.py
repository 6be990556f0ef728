"""Makes what is made in the docs.

That is `docs/cli.md`, README's example, the demo's output and plots, the dashboard's words in `docs/privacy.md`, the
pictures of `docs/reproduction.md` and its words on two cores, the table of newcomers in `docs/service.md`, the tables
and pictures of `docs/audit.md`, accuracy against leakage, from the records, the test vectors of `docs/wire.md`, every
marked number of every page (see `measured.py`), and the tables of model `audience` (see `one_class.py`).
Run by `make docs`; `python docs/generate.py cli` makes one part alone, as do `example`, `demo`, `knowledge`, `paper`,
`grid`, `newcomers`, `audit`, `leakage`, `wire`, `keys`, `numbers`, `one-class` and `ratings`.
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from audit_suite import SUITE

from hushrec.cli import app
from hushrec.cli.options import declared_by, help_text
from hushrec.experiment_records import read_records
from hushrec.experiments.config import NOT_IN_A_FILE
from hushrec.options import KINDS
from hushrec.protocols import PROTOCOLS
from hushrec.report import plots
from hushrec.report.audits import attack_rows, audit_figures
from hushrec.report.figures import paper_figures
from hushrec.report.leakage import leakage_plot, read_points, recovered
from hushrec.report.studies import make_study, read_studies
from hushrec.simulation.settings import COMMON

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
FIRST_HOUR = DOCS / "first-hour.md"
START, END = "<!-- demo output: made by `make docs` -->", "<!-- end of demo output -->"
AUDITS = DOCS.parent / "experiments" / "records" / "audit"
AUDIT_COMMANDS = {
    "ml-100k": "ml-100k",
    "ml-1m": "ml-1m",
    "ml-100k-bpr": "ml-100k --model bpr",
    "ml-100k-cap": "ml-100k --protocol sdcf --profile-cap 600",
    "ml-100k-sweeps": "ml-100k --protocol sdcf --users 30 --sweep noise --sweep budget",
    "ml-100k-fm": "ml-100k --model fm",
    "ml-100k-masked": "ml-100k --protocol masked",
    "ml-100k-masked-audience": "ml-100k --protocol masked --model audience",
}
LEAKAGE = DOCS.parent / "experiments" / "records" / "leakage" / "ml-100k.json"
AUDIT_PICTURES = {
    "ml-100k": ["sdcf-roc", "sdcf-rounds", "sdcf-selection"],
    "ml-100k-sweeps": ["sdcf-noise", "sdcf-budget"],
}
KNOWS, KNOWS_END = "<!-- knowledge: made by `make docs` -->", "<!-- end of knowledge -->"
NEWCOMERS, NEWCOMERS_END = "<!-- newcomers: made by `make docs` -->", "<!-- end of newcomers -->"
NEWCOMERS_RECORD = DOCS.parent / "benchmarks" / "records" / "newcomers.json"
KEYS, KEYS_END = "<!-- keys: made by `make docs` -->", "<!-- end of keys -->"
GRID, GRID_END = "<!-- two cores: made by `make docs` -->", "<!-- end of two cores -->"
GRID_RECORD = DOCS.parent / "benchmarks" / "records" / "grid-two-cores.json"
SETS = {"task1-ml-100k": "ML-100K", "task1-ml-1m": "ML-1M", "task1-netflix-10k": "netflix-10k"}
HEAD = """# Command line

Made by `make docs` from every command's `--help`; a test fails when it is stale. `hushrec --install-completion` sets
up completion for the shell you are in. Exit codes: 1 with one sentence for an error of ours, 2 for a usage error, 130
after Ctrl-C. `--json` prints one object, alone on stdout; whatever is said besides goes to stderr.
"""


def commands(
    command: typer.core.TyperCommand | typer.core.TyperGroup, words: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """A command and all below it, as words on a command line."""
    yield words
    for name in sorted(getattr(command, "commands", {})):
        yield from commands(command.commands[name], (*words, name))


def help_of(words: tuple[str, ...]) -> str:
    """What `--help` prints, in a terminal of 100 columns."""
    out = io.StringIO()
    wide = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, wide), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app([*words[1:], "--help"], prog_name=words[0])
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def cli_page() -> str:
    """The whole of `docs/cli.md`."""
    every = commands(typer.main.get_command(app), ("hushrec",))
    parts = [f"## `{' '.join(words)}`\n\n```\n{help_of(words)}\n```\n" for words in every]
    return "\n".join([HEAD, *parts])


def with_output(page: str, output: str) -> str:
    """The page with what the demo prints between its two marks."""
    head, _, rest = page.partition(START)
    tail = rest.partition(END)[2]
    return f"{head}{START}\n```text\n{output.strip()}\n```\n{END}{tail}"


def demo_output(folder: Path) -> str:
    """What `hushrec demo` prints in a terminal of 80 columns; the seconds are left out, they differ."""
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        app(["demo"], prog_name="hushrec")
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return re.sub(r"^\d+ s\. ", "", "\n".join(lines), flags=re.MULTILINE)


def write_example() -> None:
    """Writes what README's Python block prints into the block after it."""
    page = README.read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code[1], "README.md", "exec"), {})
    head, tail = page[: code.end()], page[code.end() :]
    tail = re.sub(r"```text\n.*?```", lambda _: f"```text\n{out.getvalue()}```", tail, count=1, flags=re.DOTALL)
    README.write_text(head + tail, "utf-8")


def draw_demo(folder: Path) -> None:
    """Where every setting of the demo ends, and how it learns, from its runs."""
    (study,) = read_studies([folder])
    for name, draw in (("finals", plots.finals), ("curves", plots.curves)):
        (DOCS / "pictures" / f"demo-{name}.svg").write_text(draw(study), "utf-8")


def write_demo() -> None:
    """Write the demo's output into docs/first-hour.md, and its two plots."""
    with tempfile.TemporaryDirectory() as folder:
        output = demo_output(Path(folder))
        draw_demo(Path(folder) / "hushrec-demo")
    FIRST_HOUR.write_text(with_output(FIRST_HOUR.read_text("utf-8"), output), "utf-8")


def with_knowledge(page: str) -> str:
    """docs/privacy.md with what each protocol's server can and cannot know between its two marks."""
    parts = ["## What the server of a network run can and cannot know"]
    for name, knowledge in ((name, protocol.knowledge) for name, protocol in PROTOCOLS.items()):
        for verb, sentences in (("can", knowledge.can), ("cannot", knowledge.cannot)) if knowledge.can else ():
            parts.append(f"Under `{name}`, it {verb} know:\n\n" + "\n".join(f"- {sentence}" for sentence in sentences))
    head, _, rest = page.partition(KNOWS)
    known = "\n\n".join(parts)
    return f"{head}{KNOWS}\n{known}\n{KNOWS_END}{rest.partition(KNOWS_END)[2]}"


def write_knowledge() -> None:
    """Writes the section of docs/privacy.md."""
    page = DOCS / "privacy.md"
    page.write_text(with_knowledge(page.read_text("utf-8")), "utf-8")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell or '–' for cell in line)} |" for line in lines)


def sweep_table(points: list[dict[str, Any]], across: str) -> str:
    """What was swept from left to right, one line per attack, the test error last."""
    header = [{"noise": "variance of the noise, times its own", "epsilon_g": "ε_g"}.get(across, across)]
    header += [f"{point[across]:,g}".replace("1e+06", "1,000,000") for point in points]
    names = [name for name in points[0] if name not in (across, "rmse")] + ["rmse"] * ("rmse" in points[0])
    return table(header, [[name.replace("_", " "), *(_three(point.get(name)) for point in points)] for name in names])


def _three(value: float | list[float] | None) -> str:
    if isinstance(value, list):
        return "–".join(map(_three, value))
    return "" if value is None else f"{value:.3f}"


def audit_tables() -> dict[str, str]:
    """Every table of docs/audit.md by name, from the records of the audits."""
    records = {name: json.loads((AUDITS / f"{name}.json").read_text("utf-8")) for name in AUDIT_COMMANDS}
    run = [
        [
            f"`{name}`",
            f"`hushrec audit {AUDIT_COMMANDS[name]} --plots DIR`",
            f"{record['seconds']:.0f}",
            f"{record['processor_seconds']:.0f}" if "processor_seconds" in record else "",
        ]
        for name, record in records.items()
    ]
    tables = {"commands": table(["record", "command", "seconds", "of processors"], run)}
    for name, record in records.items():
        rows = [[row.target, row.name, row.measure, row.chance, *row.cells] for row in attack_rows(record)]
        tables[name] = table(["target", "attack", "measure", "chance", *map("`{}`".format, record["worst"])], rows)
        for curves in record["curves"].values():
            for kind, across in (("noise", "noise"), ("budget", "epsilon_g"), ("selection", "rounds")):
                if kind in curves:
                    tables[f"{name}-{kind}"] = sweep_table(curves[kind], across)
    tables["rare"] = rare_table(next(iter(records["ml-100k-masked"]["runs"].values())))
    tables["table-1"] = systems_table()
    tables["claims"] = claims_table(records["ml-100k-masked"])
    tables["suite"] = suite_table()
    return tables


def claims_table(record: dict[str, Any]) -> str:
    """Every lower bound on ε of an audit of masked beside the ε that is claimed, by unit."""
    columns, rows = list(record["runs"]), []
    for unit, suffix, claimed in (("whole profile", "", "epsilon"), ("one rating", "_one_rating", "item_level")):
        found: dict[tuple[str, str], dict[str, str]] = {}
        for one in record["attacks"]:
            how = {f"epsilon_ruled_out{suffix}": "", f"epsilon_counted{suffix}": ", counted"}.get(one["metric"])
            if how is not None:
                found.setdefault((one["name"], how), {})[one["protocol"]] = f"{one['value']:.2f}"
        for (name, how), cells in found.items():
            rows.append([unit, name + how, *(cells.get(label, "") for label in columns)])
        budgets = (record["runs"][label]["budget"][claimed] for label in columns)
        rows.append([f"**{unit}**", "**claimed**", *(f"**{float(one):.3g}**" for one in budgets)])
    return table(["unit", "ε of at least, at 95 %", *map("`{}`".format, columns)], rows)


def suite_table() -> str:
    """Which attacks of the suite apply to masked."""
    rows = [
        ["; ".join(one.attacks), "applies" if one.findings else "does not apply", "; ".join(one.findings), one.why]
        for one in SUITE
    ]
    return table(["attacks on gradients", "to `masked`", "attacks there", "why"], rows)


def systems_table() -> str:
    """The paper's Table 1 with numbers: our protocols as audited, the others as far as they were simulated."""
    ours = json.loads(LEAKAGE.read_text("utf-8"))["points"]
    found = {one["label"]: (one["recovered"], "the whole protocol") for one in ours if one["protocol"] != "simulated"}
    for one in json.loads((AUDITS / "ml-100k-rivals.json").read_text("utf-8"))["rivals"]:
        caught = {kind: vars(what) for kind, what in recovered(one, one["label"]).items()}
        found[one["label"]] = caught, f"{one['simulated']}. Not simulated: {one['left_out']}"
    rows = [
        [label, *(_beside_chance(caught.get(kind)) for kind in ("items", "ratings", "taste")), simulated]
        for label, (caught, simulated) in found.items()
    ]
    return table(["system", "existence", "value", "model", "what was run"], rows)


def _beside_chance(caught: dict[str, Any] | None) -> str:
    return "" if caught is None else f"{caught['value']:.2f} ({caught['known_anyway']:.2f})"


def rare_table(run: dict[str, Any]) -> str:
    """Whom exact sums expose to anybody."""
    rows = [
        ["items that one person alone rated", f"{run['rare_items']}"],
        ["people who rated such an item", f"{run['people_with_a_rare_item']:.1%}"],
    ]
    return table(["ML-100K, training part", ""], rows)


def with_tables(page: str) -> str:
    """docs/audit.md with every table between its two marks."""
    tables = audit_tables()
    marked = r"<!-- table (\S+): made by `make docs` -->\n.*?<!-- end of table -->"

    def fresh(found: re.Match[str]) -> str:
        return f"<!-- table {found[1]}: made by `make docs` -->\n{tables[found[1]]}\n<!-- end of table -->"

    return re.sub(marked, fresh, page, flags=re.DOTALL)


def audit_pictures() -> dict[str, str]:
    """The plots of docs/audit.md by file name, drawn from the records."""
    drawn = {}
    for name, wanted in AUDIT_PICTURES.items():
        figures = audit_figures(json.loads((AUDITS / f"{name}.json").read_text("utf-8")))
        drawn |= {f"audit-{one}.svg": figures[one][1] for one in wanted}
    return drawn


def leakage_picture() -> str:
    """Accuracy against leakage, drawn from its record."""
    record = json.loads(LEAKAGE.read_text("utf-8"))
    return leakage_plot(read_points(record), record["lines"])


def write_leakage() -> None:
    """Writes the picture of README and docs/privacy.md."""
    (DOCS / "pictures" / "leakage.svg").write_text(leakage_picture(), "utf-8")


def write_audit() -> None:
    """Writes the tables of docs/audit.md, and its pictures."""
    page = DOCS / "audit.md"
    page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
    for name, figure in audit_pictures().items():
        (DOCS / "pictures" / name).write_text(figure, "utf-8")


def experiment_keys() -> str:
    """A table of every key of a run in an experiment file, from what models and protocols declare."""
    common = [option for option in COMMON if option.name not in NOT_IN_A_FILE]
    rows = [[f"`{one.name}`", KINDS[one.kind], one.help, one.described_default or "", "all"] for one in common]
    for name, owners in declared_by().items():
        meaning, _, default = help_text(owners).partition("  [default: ")
        kind = KINDS[next(iter(owners.values())).kind]
        rows.append([f"`{name}`", kind, meaning, default.removesuffix("]"), ", ".join(owners)])
    special = {
        "data_weight": ("a number", "Weight N of the data term.", ""),
        "measure_every": ("a whole number", "Rounds between two points of the curve.", "1"),
        "groups": ("a list of tables", "Budgets that differ between people.", ""),
    }
    rows += [[f"`{name}`", *words, "experiments alone"] for name, words in special.items()]
    return table(["key", "holds", "meaning", "default", "used by"], rows)


def with_keys(page: str) -> str:
    """docs/experiments.md with the table between its two marks."""
    head, _, rest = page.partition(KEYS)
    return f"{head}{KEYS}\n{experiment_keys()}\n{KEYS_END}{rest.partition(KEYS_END)[2]}"


def write_keys() -> None:
    """Writes the table of docs/experiments.md."""
    page = DOCS / "experiments.md"
    page.write_text(with_keys(page.read_text("utf-8")), "utf-8")


def write_cli() -> None:
    """Writes docs/cli.md."""
    (DOCS / "cli.md").write_text(cli_page(), "utf-8")


def write_paper() -> None:
    """Draws the pictures of docs/reproduction.md anew from the records, by the names that it gives them."""
    page = (DOCS / "reproduction.md").read_text("utf-8")
    records = DOCS.parent / "experiments" / "records"
    for folder in sorted(path.parent for path in records.glob("*/experiment.json")):
        drawn = paper_figures(make_study(read_records(folder)))
        for name, (_, svg) in drawn.items():
            picture = f"pictures/{folder.name}-{name.removeprefix('task1-')}.svg"
            if picture in page:
                (DOCS / picture).write_text(svg, "utf-8")


def two_cores() -> str:
    """What Task 1 takes on two cores: seconds that were measured, hours that were not."""
    record = json.loads(GRID_RECORD.read_text("utf-8"))
    parts = []
    for name, shown in SETS.items():
        grid = record["grids"][name]
        splits, seconds = grid["splits measured"], grid["measured seconds"]
        parts.append(
            f"{splits} split{'s' * (splits > 1)} of {shown} ({grid['runs measured']} runs) {seconds['wall']:.0f} s"
            f" ({seconds['processor']:.0f} processor seconds)"
        )
    text = (
        f"With {record['jobs']} runs at a time Task 1 took on {parts[0]}, on {parts[1]} and on {parts[2]}"
        " (`benchmarks/grid_two_cores.py`). All 30 splits of the three sets were not run on two cores: measured seconds"
        f" × splits come to {record['extrapolated hours']:.1f} hours, against the H200's two minutes."
    )
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def with_two_cores(page: str) -> str:
    """docs/reproduction.md with these words between their two marks."""
    head, _, rest = page.partition(GRID)
    return f"{head}{GRID}\n{two_cores()}\n{GRID_END}{rest.partition(GRID_END)[2]}"


def newcomers_table() -> str:
    """Test error of people who took part in no round, by how many ratings they gave."""
    record = json.loads(NEWCOMERS_RECORD.read_text("utf-8"))
    measured = record["test_rmse_by_number_of_ratings"]
    rows = [
        [f"{name}: {label}", *(f"{row[label]:.3f}" for row in by_count.values())]
        for name, by_count in measured.items()
        for label in ("fit", "own mean", "bias model", "start vector")
    ]
    return table(["test RMSE after so many ratings", *measured["ml-100k"]], rows)


def with_newcomers(page: str) -> str:
    """docs/service.md with this table between its two marks."""
    head, _, rest = page.partition(NEWCOMERS)
    return f"{head}{NEWCOMERS}\n{newcomers_table()}\n{NEWCOMERS_END}{rest.partition(NEWCOMERS_END)[2]}"


def write_newcomers() -> None:
    """Writes the table of newcomers into docs/service.md."""
    page = DOCS / "service.md"
    page.write_text(with_newcomers(page.read_text("utf-8")), "utf-8")


def write_numbers() -> None:
    """Write every marked number of every page from its record."""
    import measured  # beside this file

    for page in (README, *sorted(DOCS.rglob("*.md"))):
        page.write_text(measured.with_numbers(page.read_text("utf-8")), "utf-8")


def write_one_class() -> None:
    """Write the tables of model `audience` into docs/one-class-and-fm.md."""
    import one_class  # beside this file

    page = DOCS / "one-class-and-fm.md"
    page.write_text(one_class.with_audience(page.read_text("utf-8")), "utf-8")


def write_ratings() -> None:
    """Write the tables of the rules of `gp` and `audience` into the pages of `rating_tables.PAGES`."""
    import rating_tables  # beside this file

    for name, tables in rating_tables.PAGES.items():
        page = DOCS / name
        page.write_text(rating_tables.with_tables(page.read_text("utf-8"), tables), "utf-8")


def write_grid() -> None:
    """Writes the words on two cores into docs/reproduction.md, where they have been measured."""
    page = DOCS / "reproduction.md"
    if GRID_RECORD.is_file():
        page.write_text(with_two_cores(page.read_text("utf-8")), "utf-8")


def write_scale() -> None:
    """Write the predictions of `hushrec capacity` into docs/scale.md."""
    import scale_tables  # beside this file

    page = DOCS / "scale.md"
    page.write_text(scale_tables.with_scale(page.read_text("utf-8")), "utf-8")


def write_wire() -> None:
    """Writes the test vectors of docs/wire.md."""
    import wire_vectors  # beside this file

    wire_vectors.FILE.write_text(wire_vectors.as_text(), "utf-8")


if __name__ == "__main__":
    made = {
        "cli": write_cli, "example": write_example, "demo": write_demo, "knowledge": write_knowledge,
        "paper": write_paper, "grid": write_grid, "newcomers": write_newcomers, "audit": write_audit,
        "leakage": write_leakage, "wire": write_wire, "keys": write_keys, "numbers": write_numbers,
        "one-class": write_one_class, "ratings": write_ratings, "scale": write_scale,
    }  # fmt: skip
    for name in sys.argv[1:] or made:
        made[name]()
