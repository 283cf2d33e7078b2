"""A compile_commands.json for clang-tidy, with the flags that it understands: compile_commands.py FOLDER"""

import json
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    include = f"-I{ROOT / 'include'} -std=c11 -Wall -Wextra"
    library = f"{include} -DMS_EXPERIMENTAL"
    own = f"-I{ROOT / 'python/memscale/_core'}"  # the extension's folders include its core.h
    python = f"{own} -DPy_LIMITED_API=0x030A0000 -isystem {sysconfig.get_paths()['include']}"
    commands = []
    for path in sorted(path for folder in ("src", "python", "examples") for path in (ROOT / folder).rglob("*.c")):
        top = path.relative_to(ROOT).parts[0]
        flags = {"src": library, "python": f"{library} {python}", "examples": include}[top]
        commands.append({"directory": str(ROOT), "file": str(path), "command": f"clang {flags} -c {path}"})
    (folder / "compile_commands.json").write_text(json.dumps(commands, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
