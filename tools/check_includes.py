"""The order of includes in docs/ARCHITECTURE.md: which folder of src/, and of the extension, may include which."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A folder may include itself, the public header, and what is named here.
ALLOWED = {
    "common": set(),
    "prim": {"common"},
    "cu": {"common", "prim"},
    "hw": {"common", "prim", "cu"},
    "profile": {"common"},
    "sim": {"common", "profile"},
    "plan": {"common", "profile", "sim"},
    "policy": {"common", "profile", "sim", "plan"},
    "offload": {"common", "prim", "cu"},
    "kernels": {"common"},
    "device": {"common", "prim", "cu", "kernels"},
    "optim": {"common", "prim", "cu", "offload", "kernels", "device"},
}
# The brain decides in whole numbers: no floating-point types where a decision is made.
NO_FLOAT = {"profile", "sim", "plan", "policy"}
# The extension: its parts share core.h and tensors.h, and do not include each other.
EXTENSION = {
    "core.h": set(),
    "tensors.h": {"core.h"},
    "tensors.c": {"tensors.h"},
    "module.c": {
        "core.h",
        "tensors.h",
        "bind/bind.h",
        "offload/offloading.h",
        "pointwise/pointwise.h",
        "recompute/recompute.h",
    },
    "bind": {"core.h", "bind.h"},
    "offload": {"core.h", "tensors.h", "offloading.h"},
    "pointwise": {"core.h", "tensors.h", "pointwise.h"},
    "recompute": {"core.h", "tensors.h", "recompute.h"},
}
PUBLIC = re.compile(r'#include\s+[<"]memscale/')
QUOTED = re.compile(r'#include\s+"([^"]+)"')
FLOAT = re.compile(r"\b(float|double)\b(?!\))")
FORBIDDEN = re.compile(r"#include\s+<(torch|ATen|c10|cuda|nvrtc|nvml|Python)")


def check_line(folder: str, path: Path, number: int, line: str) -> list[str]:
    where = f"{path.relative_to(ROOT)}:{number}"
    if FORBIDDEN.search(line):
        return [f"{where}: the core includes neither Python, torch nor CUDA: {line.strip()}"]
    if folder in NO_FLOAT and FLOAT.search(line.split("/*")[0]):
        return [f"{where}: floating point where decisions are made: {line.strip()}"]
    match = QUOTED.search(line)
    if not match or PUBLIC.search(line):
        return []
    included = (path.parent / match.group(1)).resolve()
    if not included.exists():
        return [f"{where}: {match.group(1)} does not exist"]
    other = included.relative_to(ROOT / "src").parts[0]
    if other != folder and other not in ALLOWED[folder]:
        return [f"{where}: {folder} may not include {other}"]
    return []


def check_extension(path: Path) -> list[str]:
    part = path.relative_to(ROOT / "python/memscale/_core").parts[0]
    if part not in EXTENSION:
        return [f"{path.relative_to(ROOT)}: {part} is not in the law"]
    problems = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = QUOTED.search(line)
        if match and match.group(1) not in EXTENSION[part]:
            problems.append(f"{path.relative_to(ROOT)}:{number}: {part} may not include {match.group(1)}")
    return problems


def shared_names() -> list[str]:
    """Files of C that share a name: a backtrace or a message that names one would name two places."""
    command = ["git", "-C", str(ROOT), "ls-files", "*.c", "*.h", "*.cu"]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(Path(file).name, []).append(file)
    return [f"{', '.join(paths)}: files share a name" for paths in by_name.values() if len(paths) > 1]


def main() -> int:
    problems = shared_names()
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".c", ".h", ".cu"):
            continue
        folder = path.relative_to(ROOT / "src").parts[0]
        if folder not in ALLOWED:
            problems.append(f"{path.relative_to(ROOT)}: folder {folder} is not in the law")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            problems += check_line(folder, path, number, line)
    for path in sorted((ROOT / "python/memscale/_core").rglob("*.[ch]")):
        problems += check_extension(path)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
