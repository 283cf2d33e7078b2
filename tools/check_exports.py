"""Exported symbols and needed libraries of the built binaries: check_exports.py BUILD_FOLDER

libmemscale exports exactly what memscale.h declares and src/memscale.map lists, each part of the header under its own
versions (MEMSCALE_EXPERIMENTAL for what needs MS_EXPERIMENTAL, MEMSCALE_x.y for the rest); the extension exports its
init function alone and takes nothing from Python but what tools/stable_abi_3_10.txt names; neither links against torch
or CUDA.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER, MAP, STABLE = "include/memscale/memscale.h", "src/memscale.map", "tools/stable_abi_3_10.txt"
PROTOTYPE = re.compile(r"^(?:MS_NODISCARD )?MS_API .*?(\w+)\(")
EXPERIMENTAL = "MEMSCALE_EXPERIMENTAL"
ALLOWED_LIBRARIES = re.compile(r"^(libc|libm|libpthread|libdl|ld-linux.*|libgcc_s)\.so")


def symbols(path: Path, *options: str) -> set[str]:
    """Dynamic symbols, with their versions where they have one ("name@@VERSION"); the versions themselves left out."""
    command = ["nm", "-D", "--with-symbol-versions", *options, str(path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1] for line in lines if line.split()[-2] != "A"}


def needed(path: Path) -> list[str]:
    output = subprocess.run(["readelf", "-d", str(path)], check=True, capture_output=True, text=True).stdout
    return re.findall(r"NEEDED.*\[(.*)\]", output)


def listed_symbols() -> set[str]:
    """What the version script lists, as the library should export it: "name@@VERSION"."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / MAP).read_text(), flags=re.DOTALL)
    nodes = re.findall(r"(\w[\w.]*)\s*\{\s*global:(.*?)(?:local:.*?)?\}", text, re.DOTALL)
    return {f"{name}@@{version}" for version, names in nodes for name in re.findall(r"(\w+);", names)}


def declared_functions() -> dict[str, bool]:
    """The functions of the public header: does each need MS_EXPERIMENTAL?"""
    functions, conditions = {}, []
    for line in (ROOT / HEADER).read_text().splitlines():
        if re.match(r"#\s*if", line):
            conditions.append(line.split()[-1])
        elif re.match(r"#\s*endif", line):
            conditions.pop()
        elif match := PROTOTYPE.match(line):
            functions[match.group(1)] = "MS_EXPERIMENTAL" in conditions
    return functions


def stable_symbols() -> set[str]:
    """Names of the stable ABI that may be used; a name that is newer than Python 3.10 does not count."""
    rows = [line.split() for line in (ROOT / STABLE).read_text().splitlines() if not line.startswith("#")]
    return {name for name, added in rows if tuple(map(int, added.split("."))) <= (3, 10)}


def check_library(path: Path) -> list[str]:
    declared = set(declared_functions().items())
    listed = listed_symbols()
    exported = symbols(path, "--defined-only")
    problems = []
    if difference := declared ^ {(name.split("@")[0], name.endswith(f"@{EXPERIMENTAL}")) for name in listed}:
        names = sorted({name for name, _ in difference})
        problems.append(f"{HEADER} and {MAP} differ, or have it in different parts: {names}")
    if difference := listed - exported:
        problems.append(f"{MAP} lists what {path.name} does not export: {sorted(difference)}")
    if difference := exported - listed:
        problems.append(f"{path.name} exports what {MAP} does not list: {sorted(difference)}")
    return problems


def check_extension(path: Path) -> list[str]:
    problems = []
    if (own := symbols(path, "--defined-only")) != {"PyInit__core"}:
        problems.append(f"the extension exports {sorted(own)}")
    used = {name for name in symbols(path, "--undefined-only") if name.startswith(("Py", "_Py"))}
    if unknown := used - stable_symbols():
        problems.append(f"the extension uses what is not in {STABLE} (see there): {sorted(unknown)}")
    return problems


def main(build: Path) -> int:
    library, extension = build / "libmemscale.so", build / "python/memscale/_core.abi3.so"
    problems = check_library(library) + check_extension(extension)
    for path in (library, extension):
        wrong = [name for name in needed(path) if not ALLOWED_LIBRARIES.match(name)]
        if wrong:
            problems.append(f"{path.name} needs {wrong}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
