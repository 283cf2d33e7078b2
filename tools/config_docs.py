#!/usr/bin/env python
"""Write docs/CONFIG.md, the list of all settings, from the declarations in memscale/config.py.

python tools/config_docs.py            write it
python tools/config_docs.py --check    exit with status 1 if it is not what would be written
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memscale._settings import Settings, field_docs
from memscale.config import AsyncOffloadConfig, Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "CONFIG.md"

HEAD = """\
# Settings

<!-- Written by tools/config_docs.py from python/memscale/config.py; change it there. -->

`help(memscale.Config)` shows the same list. The mode sets the defaults of the fields that you leave out; a field that
you give always wins. GB means 1e9 bytes. Unknown names, wrong types, values out of range and contradictions raise
`ValueError`.

The last column says whether this version has what a field asks for. *no*: asking for it raises `MemScaleError`, and the
default of a mode skips it. *only*: other values raise `MemScaleError`. *no effect*: the field is accepted, but it
belongs to a field that this version does not have.
"""


def table(settings: type[Settings]) -> str:
    """The fields of a class as a table."""
    rows = ["| field | default | allowed | meaning | in this version |", "|---|---|---|---|---|"]
    for doc in field_docs(settings):
        rows.append(f"| `{doc.name}` | {doc.default} | {doc.allowed} | {doc.meaning} | {doc.available} |")
    return "\n".join(rows)


def page() -> str:
    """The whole document."""
    sections = [HEAD]
    for settings in (Config, AsyncOffloadConfig):
        sections.append(f"## {settings.__name__}\n\n{table(settings)}\n")
    return "\n".join(sections)


def main() -> int:
    """Write or check the document; the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/CONFIG.md, the list of all settings.")
    parser.add_argument("--check", action="store_true", help="compare only; exit with status 1 if it differs")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print("docs/CONFIG.md is out of date: run python tools/config_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
