"""Names and figures are written in one place.

Names: actions, model options, categories and phases have their names in three tables in C, which Python gets as data.
No other source of the library or the package has one of these names as a string; only names of several words are
looked for, since "offload" or "forward" are also ordinary words. Figures: sizes, times and rates get their digits and
units in src/common/text.c and python/memscale/_show/text.py; no other string puts a unit after a number.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("src/sim/actions.c", "src/sim/model_options.c", "src/common/names.c")
FIGURES = ("src/common/text.c", "python/memscale/_show/text.py")
# Where an identifier of a table may be written, and why.
ALLOWED = {
    "python/memscale/_run/handlers.py": {
        "offload_blocking",
        "offload_pointwise",
        "recompute_offload",
        "recompute_offload_blocking",
        "recompute_pointwise",
    },
    "python/memscale/_show/bars.py": {"optimizer_state", "library_workspaces"},  # the order of the bars, by category
    "python/memscale/_base/vocabulary.py": {"optimizer_step", "optimizer_step_first"},  # constants for phases
}

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_PAIR = re.compile(rf"\{{\s*({_STRING}),\s*({_STRING})\s*\}}")  # the name for people, and the identifier
_C_TOKEN = re.compile(rf"/\*.*?\*/|//[^\n]*|^[ \t]*#[ \t]*include[^\n]*|'(?:[^'\\]|\\.)'|({_STRING})", re.S | re.M)
_PLACE = re.compile(rf"\}}\s*,\s*({_STRING})\s*\}}")  # how a sentence names a phase
_UNIT = r"(?: ?(?:[kMGT]i?B|[num]s|[GT]FLOP/s)| [sB])(?![\w-])"
_FORMATTED = re.compile(rf"(?:%[-+ #0-9.*]*(?:hh|h|ll|l|j|z|t)?[diufgse]|\}}){_UNIT}")
_AFTER_VALUE = re.compile(_UNIT)
_FIELD = re.compile(r"%[-+ #0-9.*]*[a-z]+|\{[^}]*\}")
_EDGE = re.compile(r"^[\W_]+|[\W_]+$")


def table_names(texts: list[str]) -> set[str]:
    """The names of several words in tables, for people and for programs."""
    literals = [name for text in texts for pair in _PAIR.findall(text) for name in pair]
    literals += [place for text in texts for place in _PLACE.findall(text)]
    names = {ast.literal_eval(name) for name in literals}
    return {name for name in names if " " in name or "_" in name}


def c_strings(text: str) -> Iterator[tuple[int, str, bool]]:
    """The string literals of C: the line, the text, and whether it follows a macro such as PRId64."""
    for match in _C_TOKEN.finditer(text):
        if match[1]:
            is_after = re.search(r"PRI\w+\s*$", text[: match.start()]) is not None
            yield text.count("\n", 0, match.start()) + 1, re.sub(r"\\.", " ", match[1][1:-1]), is_after


def python_strings(text: str) -> Iterator[tuple[int, str, bool]]:
    """The string literals of Python, without documentation: the line, the text, and whether it follows a value."""
    tree = ast.parse(text)
    documents = {id(child.value) for node in ast.walk(tree) for child in _documents(node)}
    followers = {
        id(after)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for value, after in zip(node.values, node.values[1:])
        if isinstance(value, ast.FormattedValue)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.lineno, node.value, id(node) in followers


def _documents(node: ast.AST) -> Iterator[ast.Expr]:
    """Strings that are statements: they document what is around or before them."""
    for child in getattr(node, "body", []) if not isinstance(node, (ast.Lambda, ast.IfExp)) else []:
        if isinstance(child, ast.Expr):
            yield child


def check_strings(path: str, strings: Iterator[tuple[int, str, bool]], names: set[str]) -> list[str]:
    """What is wrong with the strings of one file."""
    problems = []
    for line, text, is_after_value in strings:
        is_name = {text.strip(), _EDGE.sub("", _FIELD.sub("", text))} & (names - ALLOWED.get(path, set()))
        if path not in TABLES and is_name:
            problems.append(f"{path}:{line}: {text!r} is a name of a table in C: take it from there")
        has_unit = _FORMATTED.search(text) or (is_after_value and _AFTER_VALUE.match(text))
        if path not in FIGURES and (has_unit or (text[:1] == " " and _AFTER_VALUE.fullmatch(text))):
            problems.append(f"{path}:{line}: {text!r} puts a unit after a number: use {' or '.join(FIGURES)}")
    return problems


def check_tree(root: Path) -> list[str]:
    """What is wrong with the strings of a source tree."""
    names = table_names([(root / table).read_text(encoding="utf-8") for table in TABLES])
    problems = []
    for folder, pattern, strings in (
        ("src", "*.c", c_strings),
        ("python/memscale", "*.c", c_strings),
        ("python/memscale", "*.py", python_strings),
    ):
        for path in sorted((root / folder).rglob(pattern)):
            text = path.read_text(encoding="utf-8")
            problems += check_strings(path.relative_to(root).as_posix(), strings(text), names)
    return problems


def main() -> int:
    problems = check_tree(ROOT)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
