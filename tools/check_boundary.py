"""The boundary between Python and C: python/memscale/_core.pyi declares what the extension has, and no call is long.

    python tools/check_boundary.py [FOLDER]       FOLDER has the package as it was built, such as build/plain/python

No function or method takes more than six positional arguments: one that needs more takes them by keyword, or takes an
object. Every name that is declared exists in the built module, and the other way round; without a FOLDER, or with one
that holds no extension, this is not compared.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "memscale"
DECLARATIONS = ROOT / "python/memscale/_core.pyi"
MAX_POSITIONAL = 6

Names = dict[str, set[str]]  # the members of each class; for any other name, the empty set


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef):
                    yield f"{node.name}.{child.name}", child


def check_lengths(text: str) -> list[str]:
    """Functions and methods of a stub file that take too many positional arguments."""
    problems = []
    for name, node in _functions(ast.parse(text)):
        arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        n = len([argument for argument in arguments if argument not in ("self", "cls")])
        if n > MAX_POSITIONAL:
            problems.append(f"line {node.lineno}: {name} takes {n} positional arguments, at most {MAX_POSITIONAL}")
    return problems


def declared_names(text: str) -> Names:
    """The names that a stub file declares. Type aliases and TypedDicts exist for type checkers only."""
    names: Names = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign):
            names[ast.unparse(node.target)] = set()
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = set()
        elif isinstance(node, ast.ClassDef) and "TypedDict" not in map(ast.unparse, node.bases):
            names[node.name] = {_member(child) for child in node.body} - {"", "__init__", "__call__"}
    return names


def _member(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return node.name if isinstance(node, ast.FunctionDef) else ""


def built_names(module: ModuleType) -> Names:
    """What the module has."""
    return {name: _members(value) for name, value in vars(module).items() if not name.startswith("_")}


def _members(value: object) -> set[str]:
    if not isinstance(value, type):
        return set()
    members = {name for name in vars(value) if not name.startswith("_")}
    if hasattr(value, "guess") and hasattr(value, "as_dict"):  # Rates: C finds its attributes in a table of fields
        members |= set(value.guess(90, 10**9, 100).as_dict())
    return members


def check_names(declared: Names, built: Names) -> list[str]:
    """Names that are only declared, or only built."""
    problems = [f"{name} is declared and not in the module" for name in sorted(declared.keys() - built.keys())]
    problems += [f"{name} is in the module and not declared" for name in sorted(built.keys() - declared.keys())]
    for name in sorted(declared.keys() & built.keys()):
        ours, theirs = declared[name], built[name]
        problems += [f"{name}.{member} is declared and not in the module" for member in sorted(ours - theirs)]
        problems += [f"{name}.{member} is in the module and not declared" for member in sorted(theirs - ours)]
    return problems


def load_built(folder: Path) -> ModuleType | None:
    """The extension of the package in this folder, if it was built."""
    if not list((folder / PACKAGE).glob("_core*.so")):
        return None
    sys.path.insert(0, str(folder))
    return importlib.import_module(f"{PACKAGE}._core")


def main(folder: str | None = None) -> int:
    text = DECLARATIONS.read_text(encoding="utf-8")
    problems = [f"{DECLARATIONS.name}: {problem}" for problem in check_lengths(text)]
    module = None if folder is None else load_built(Path(folder).resolve())
    if module is None:
        print("the extension was not built: its names are not compared")
    else:
        problems += check_names(declared_names(text), built_names(module))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
