"""Print the notes of a version from CHANGELOG.md: `python docs/release_notes.py 0.1.0`, or `Unreleased`."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def release_notes(changelog: str, version: str) -> str:
    """Return the section of a version, headings and all, without its own title; refuse a version that has none."""
    parts = re.split(r"^## \[(.+?)\].*$", changelog, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if version not in sections:
        raise SystemExit(f"version must be one of {', '.join(sections)}, got {version}.")
    text = re.sub(r"^\[.+?\]: .*$", "", sections[version], flags=re.MULTILINE)
    return re.sub(r"^#(#+) ", r"\1 ", text, flags=re.MULTILINE).strip()


if __name__ == "__main__":
    print(release_notes(CHANGELOG.read_text("utf-8"), sys.argv[1] if len(sys.argv) > 1 else "Unreleased"))
