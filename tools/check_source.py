"""Rules that compilers do not know: the core never prints, exits or aborts, and every public function is documented and
marked MS_NODISCARD if it can fail.

Two rules are about text: comments, docstrings and messages avoid words that cost a second reading, and no file has
leftovers of a merge."""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENDS_CHILDREN = {"child.c"}  # a throw-away process ends with _exit, and nothing but that process
FORBIDDEN = re.compile(r"\b(printf|fprintf|puts|fputs|putchar|perror|exit|_exit|abort|assert|raise)\s*\(")
PROTOTYPE = re.compile(r"^(MS_NODISCARD )?MS_API (\w+).*?(\w+)\(", re.MULTILINE)


# Each word with what to write instead. "Stand-alone" and the like are other words: a hyphen does not end a word here.
WORDS = {
    "behind": "after",
    "beside": "besides, in addition to",
    "stands": "is",
    "in earnest": "on real data",
    "not said": "unknown",
    "let expect": "predict",
}
WORD = re.compile(
    r"(?<![\w-])(" + "|".join(word.replace(" ", r"[\s*#]+") for word in WORDS) + r")(?![\w-])", re.IGNORECASE
)
# Whole comments and literals. Character literals are here because one may be a quote.
C_TEXT = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)


def forbidden_calls() -> list[str]:
    problems = []
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("/*")[0])
            if FORBIDDEN.search(code.replace("_exit", "") if path.name in ENDS_CHILDREN else code):
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


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and string literals of a C or Python file, each with the number of its first line. Docstrings are string
    literals; comments on adjacent lines are one text, so that a phrase is found across a line break."""
    source = path.read_text()
    if path.suffix != ".py":
        for match in C_TEXT.finditer(source):
            yield source.count("\n", 0, match.start()) + 1, match.group()
        return
    strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}  # f-strings: since Python 3.12
    first, block = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in strings:
            yield token.start[0], token.string
        elif token.type == tokenize.COMMENT:
            if token.start[0] != first + block.count("\n"):
                yield first, block
                first, block = token.start[0], ""
            block += token.string + "\n"
    yield first, block


def unclear_words() -> list[str]:
    """Words that are not plain English in a comment, a docstring or a message of the product."""
    problems = []
    folders = [ROOT / "src", ROOT / "include", ROOT / "python/memscale"]
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".c", ".h", ".cu", ".py")]
    for path in sorted(paths):
        for line, text in texts_of(path):
            for match in WORD.finditer(text):
                word = " ".join(re.split(r"[\s*#]+", match.group().lower()))
                number = line + text.count("\n", 0, match.start())
                problems.append(f'{path.relative_to(ROOT)}:{number}: "{word}": write "{WORDS[word]}"')
    return problems


def merge_leftovers() -> list[str]:
    """Conflict markers of a merge, in any file."""
    command = ["git", "-C", str(ROOT), "grep", "-nE", "^(<{7}|>{7}|[|]{7}) "]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    found = forbidden_calls() + undocumented() + unclear_words() + merge_leftovers()
    print("\n".join(found))
    sys.exit(1 if found else 0)
