"""What MkDocs cannot do by itself: pages from files outside docs/, from the HTTP description and from the notebook.

Links to files of the project that are no pages (source, records) become plain text: the site stands alone.
"""

import json
import re
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PROJECT = {"SECURITY.md": "SECURITY.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
ELSEWHERE = {
    "../README.md": "index.md",
    "../deploy/README.md": "deploy.md",
    "../examples/plugin/README.md": "plugin-example.md",
}
NOTEBOOK = ROOT / "examples" / "accuracy-and-leakage.ipynb"
SHIM = re.compile(r'<script src="https://[^"]+/shim"></script>')
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    made = {name: (ROOT / name).read_text("utf-8") for name in PROJECT}
    made["deploy.md"] = (ROOT / "deploy" / "README.md").read_text("utf-8")
    made["http.md"] = http_page()
    made["accuracy-and-leakage.md"] = notebook_page(json.loads(NOTEBOOK.read_text("utf-8")))
    made["decisions/index.md"] = decisions_page()
    made["plugin-example.md"] = plugin_page()
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Point links at pages of the site; the text alone stays of those that lead to none."""
    here = Path(page.file.src_uri).parent

    def settle(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        address, mark, anchor = target.partition("#")
        if "://" in target or not address or target.startswith("mailto:"):
            return link[0]
        address = re.sub(r"^(?:\.\./)?docs/", "", address) if page.file.src_uri in (*PROJECT, "deploy.md") else address
        if address in ELSEWHERE:
            return f"{picture}[{words}]({ELSEWHERE[address]})"
        name = (here / address).as_posix()
        known = files.get_file_from_path(name)
        if known is not None and known.inclusion.is_included():
            return f"{picture}[{words}]({address}{mark}{anchor})"
        return words

    return LINK.sub(settle, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Let a page load nothing from elsewhere: the theme asks another host for what makes search work on a disk."""
    return SHIM.sub(f'<script src="{"../" * page.url.count("/")}javascripts/file-worker.js"></script>', output)


def on_post_template(output: str, **_: Any) -> str:
    """The same for the page of a wrong address, which has no search to save."""
    return SHIM.sub("", output)


def plugin_page() -> str:
    """Return the example of a plug-in: what its README says, and every file of it."""
    folder = ROOT / "examples" / "plugin"
    parts = [(folder / "README.md").read_text("utf-8")]
    for path in [folder / "pyproject.toml", *sorted(folder.glob("src/*/[a-z]*.py"))]:
        language = "toml" if path.suffix == ".toml" else "python"
        parts += [f"## `{path.relative_to(folder).as_posix()}`", f"```{language}\n{path.read_text('utf-8')}```"]
    return "\n\n".join(parts) + "\n"


def decisions_page() -> str:
    """Return the list of decisions by their titles."""
    paths = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    titles = [path.read_text("utf-8").partition("\n")[0].removeprefix("# ") for path in paths]
    rows = [f"- [{title}]({path.name})" for path, title in zip(paths, titles, strict=True)]
    return "\n".join(["# Decisions", "", "Half a page each: question, choice, cost.", "", *rows, ""])


def http_page() -> str:
    """Return every route of a server: who may call it, what it does, and the statuses of its refusals."""
    rows = []
    for path, routes in _openapi()["paths"].items():
        for method, route in routes.items():
            answers = ", ".join(sorted(route["responses"]))
            rows.append(f"| `{method.upper()} {path}` | {_caller(route)} | {_summary(route)} | {answers} |")
    head = ["| route | for | what | answers |", "|---|---|---|---|"]
    return "\n".join(
        [
            "# HTTP",
            "",
            "Made from the OpenAPI description, which a server has at `/openapi.json`. Bodies are MessagePack,",
            "requests of devices are signed, and a refusal is a problem document with a `code`: [Wire format](wire.md)",
            "has all of it, with test vectors.",
            "",
            *head,
            *rows,
            "",
        ]
    )


def _caller(route: dict[str, Any]) -> str:
    kinds = [name for way in route.get("security", []) for name in way]
    return ", ".join(kinds) or "everybody"


def _summary(route: dict[str, Any]) -> str:
    text = route.get("description") or route.get("summary", "")
    return " ".join(text.split()).replace("|", "\\|")


def _openapi() -> dict[str, Any]:
    """Return the description of a server with a few items, made as `hushrec serve` makes it."""
    from hushrec.service.app import make_app
    from hushrec.service.rounds import Rounds
    from hushrec.service.settings import Settings
    from hushrec.service.setup import Items, prepare_run
    from hushrec.service.storage import Storage

    settings = Settings()
    with tempfile.TemporaryDirectory() as folder, closing(Storage(f"sqlite:///{folder}/server.sqlite")) as storage:
        ids = [str(number) for number in range(40)]
        prepare_run(storage, settings.terms, Items(ids, ids))
        return make_app(Rounds(storage, settings)).openapi()


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as a page: its text, its code and the words it printed; pictures as they were drawn."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            svg = output.get("data", {}).get("image/svg+xml")
            parts.append("".join(svg) if svg else "```text\n" + "".join(output.get("text", [])) + "```")
    return "\n\n".join(parts) + "\n"
