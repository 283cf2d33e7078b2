"""Rules that compilers do not know: the core never prints, exits or aborts, and every public function is documented and
marked MS_NODISCARD if it can fail.

And one for all files: no leftovers of a merge."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = re.compile(r"\b(printf|fprintf|puts|fputs|putchar|perror|exit|_exit|abort|assert|raise)\s*\(")
PROTOTYPE = re.compile(r"^(MS_NODISCARD )?MS_API (\w+).*?(\w+)\(", re.MULTILINE)


def forbidden_calls() -> list[str]:
    problems = []
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("/*")[0])
            if FORBIDDEN.search(code):
                problems.append(f"{path.relative_to(ROOT)}:{number}: the core may not call this: {line.strip()}")
    return problems


def undocumented() -> list[str]:
    """Each public function, stable or experimental, needs a comment right above it (or above its neighbour) that speaks
    of errors, and MS_NODISCARD if it returns a status."""
    text = (ROOT / "include/memscale/memscale.h").read_text()
    problems = []
    for match in PROTOTYPE.finditer(text):
        block = text[: match.start()].rsplit("\n\n", 1)[-1]
        marked, result, name = match.groups()
        if "/*" not in block:
            problems.append(f"memscale.h: {name} is not documented")
        elif not re.search(r"Errors?:|Cannot\s+(\* )?fail", block):
            problems.append(f"memscale.h: {name} does not say how it can fail")
        if bool(marked) != (result == "ms_status" and not re.search(r"Cannot\s+(\* )?fail", block)):
            problems.append(f"memscale.h: {name} must be MS_NODISCARD if and only if it can fail")
    return problems


def merge_leftovers() -> list[str]:
    """Conflict markers of a merge, in any file."""
    command = ["git", "-C", str(ROOT), "grep", "-nE", "^(<{7}|>{7}|[|]{7}) "]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    found = forbidden_calls() + undocumented() + merge_leftovers()
    print("\n".join(found))
    sys.exit(1 if found else 0)
