"""The order of imports in docs/ARCHITECTURE.md: which part of the Python package may import which, and how.

A part may import the parts that are named for it below, always at the top of a file. Imports for type checkers alone
(under TYPE_CHECKING) bring nothing in when a program runs, and may go where they are named. No module uses a private
name of another, no file has more than 450 lines, and no two Python files of the repository share a name.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "memscale"
MAX_LINES = 450
SIZED = ("python", "tools", "bench")  # folders whose files may not be longer
SHARED_NAMES = {"__init__.py", "__main__.py", "conftest.py"}

# A part is a module or a folder of the package; it may import itself, the extension, and what is named here.
_BELOW_BASE = {"config", "errors", "_settings"}
_BELOW_HW = _BELOW_BASE | {"_base", "_show"}
_BELOW_PLAN = _BELOW_HW | {"_hw", "_trace", "profiles", "plans"}
ALLOWED: dict[str, set[str]] = {
    "_core": set(),
    "errors": set(),
    "_settings": {"errors"},
    "config": {"errors", "_settings"},
    "_base": _BELOW_BASE,
    "_show": _BELOW_BASE | {"_base"},
    "_hw": _BELOW_HW,
    "_trace": _BELOW_HW | {"_hw"},
    "profiles": _BELOW_HW | {"_hw", "_trace"},
    "plans": _BELOW_HW,
    "_plan": _BELOW_PLAN,
    "_run": _BELOW_PLAN | {"_plan"},
    "api": _BELOW_PLAN | {"_plan", "_run"},
    "_cli": _BELOW_PLAN | {"_plan", "_run", "api"},
    "cli": {"_cli"},
    "__main__": {"cli"},
    "__init__": set(),
}
TYPES_ONLY: dict[str, set[str]] = {
    "_show": {"plans", "profiles"},  # it reads plans and profiles, which use it for their text
    "__init__": set(ALLOWED) - {"cli", "__main__"},  # names are loaded when they are first used
}
# Packages that need not be installed: they may be imported where they are used.
OPTIONAL = {"transformers", "accelerate", "numpy", "lightning", "bitsandbytes"}
# Where modules are loaded by name, at run time: the package, the table of commands, what children need of torch.
LOADERS = {
    "__init__.py": {"__getattr__"},
    "_cli/commands.py": {"run"},
    "_cli/model_registry.py": {"transformers"},  # which is optional
    "_cli/subjects.py": {"_find"},  # a module of the user's
    "_trace/child.py": {"run_in_children"},  # it takes torch seconds to import them, and not every program needs them
}


class Module(ast.NodeVisitor):
    """The imports of one file, and what is wrong with them."""

    def __init__(self, path: Path, package: Path) -> None:
        self.path = path.relative_to(package)
        self._package = package
        self.part = self.path.parts[0].removesuffix(".py")
        self.problems: list[str] = []
        self.imports: list[tuple[str, bool]] = []  # part that is imported, for types only?
        self._modules: set[str] = set()  # names of modules of the package in this file
        self.private: set[str] = set()  # names of attributes and methods that this file defines for itself
        self.foreign: list[tuple[int, str]] = []  # private attributes of what is not self: the line, and the name
        self._functions: list[str] = []
        self._for_types = False
        self.visit(ast.parse(path.read_text(encoding="utf-8")))

    def _complain(self, node: ast.AST, text: str) -> None:
        self.problems.append(f"{self.path}:{getattr(node, 'lineno', 0)}: {text}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.private |= {node.name} if _is_private(node.name) else set()
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            self._for_types = True
            for child in node.body:
                self.visit(child)
            self._for_types = False
            for child in node.orelse:
                self.visit(child)
            return
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._check_place(node, alias.name.partition(".")[0])
            if alias.name.partition(".")[0] == PACKAGE:
                self._complain(node, "modules of the package are imported relatively")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level == 0:
            self._check_place(node, module.partition(".")[0])
            if module.partition(".")[0] == PACKAGE:
                self._complain(node, "modules of the package are imported relatively")
            return
        self._check_place(node, "")
        folder = list(self.path.parts[:-1])
        base = [*folder[: len(folder) - node.level + 1], *filter(None, module.split("."))]
        for alias in node.names:
            self._check_target(node, base, alias.name)
            if self._is_module(base, alias.name):
                self._modules.add(alias.asname or alias.name)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("import_module", "__import__"):
            allowed = LOADERS.get(self.path.as_posix(), set())
            if not self._functions or self._functions[-1] not in allowed:
                self._complain(node, f"{name} loads a module by name: only {sorted(LOADERS)} may, in certain functions")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_module = isinstance(node.value, ast.Name) and node.value.id in self._modules
        if is_module and _is_private(node.attr) and node.value.id != "_core":  # type: ignore[attr-defined]
            self._complain(node, f"{ast.unparse(node)} is a private name of another module")
        elif _is_private(node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if is_own and isinstance(node.ctx, ast.Store):
                self.private.add(node.attr)
            elif not is_own:
                self.foreign.append((node.lineno, node.attr))
        self.generic_visit(node)

    def _check_place(self, node: ast.AST, package: str) -> None:
        if self._functions and package not in OPTIONAL:
            self._complain(node, f"an import inside {self._functions[-1]}(): imports are at the top of a file")

    def _check_target(self, node: ast.AST, base: list[str], name: str) -> None:
        """One name of a relative import, from the module or package at this path."""
        is_module = self._is_module(base, name)
        target = [*base, name] if is_module else base
        if not target:  # a name of the package itself
            self._complain(node, f"{name} is imported from the package: import it from its module")
            return
        part = target[0]
        self.imports.append((part, self._for_types))
        if not is_module and _is_private(name):
            self._complain(node, f"{name} is a private name of {'.'.join(base)}")
        allowed = ALLOWED.get(self.part, set()) | {"_core", self.part}
        allowed |= TYPES_ONLY.get(self.part, set()) if self._for_types else set()
        if part not in allowed:
            self._complain(node, f"{self.part} may not import {part}")

    def _is_module(self, base: list[str], name: str) -> bool:
        folder = self._package.joinpath(*base)
        known = (folder / f"{name}.py", folder / f"{name}.pyi", folder / name / "__init__.py")
        return any(path.exists() for path in known)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def find_cycle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring; none if there is no such ring."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(imports.get(name, ())):
            if ring := walk(other, [*path, name]):
                return ring
        done.add(name)
        return []

    for name in sorted(imports):
        if ring := walk(name, []):
            return ring
    return []


def module_imports(package: Path) -> dict[str, set[str]]:
    """What each module imports when it is loaded, by its name inside the package."""
    names = {_module_name(path, package) for path in package.rglob("*.py")} | {"_core"}
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        folder = list(path.relative_to(package).parts[:-1])
        targets = found.setdefault(_module_name(path, package), set())
        for node in _loaded_imports(ast.parse(path.read_text(encoding="utf-8"))):
            base = [*folder[: len(folder) - node.level + 1], *filter(None, (node.module or "").split("."))]
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                targets.add(inner if inner in names else ".".join(base))
    return found


def _loaded_imports(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        is_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node
        elif not is_types:
            yield from _loaded_imports(node)


def _module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check_package(package: Path) -> list[str]:
    """What is wrong with the imports of a package."""
    problems = []
    modules = [Module(path, package) for path in sorted(package.rglob("*.py"))]
    for module in modules:
        if module.part not in ALLOWED:
            problems.append(f"{module.path}: {module.part} is not in the law")
        problems += module.problems
        others = set().union(*(other.private for other in modules if other is not module)) - module.private
        for line, name in module.foreign:
            if name in others:
                problems.append(f"{module.path}:{line}: {name} is a private attribute of a class of another module")
    if ring := find_cycle(module_imports(package)):
        problems.append(f"an import cycle: {' -> '.join(ring)}")
    return problems


def check_files(paths: list[Path]) -> list[str]:
    """What is wrong with the lengths and names of files, given relative to the repository."""
    problems, seen = [], dict[str, Path]()
    for path in paths:
        if path.parts[0] in SIZED:
            n_lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
            if n_lines > MAX_LINES:
                problems.append(f"{path}: {n_lines} lines, at most {MAX_LINES}")
        if path.name in seen and path.name not in SHARED_NAMES:
            problems.append(f"{path}: {seen[path.name]} has the same name")
        seen.setdefault(path.name, path)
    return problems


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).exists()]
    problems = check_package(ROOT / "python" / PACKAGE) + check_files(sorted(paths))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
