"""A compile_commands.json for clang-tidy, with the flags that it understands: compile_commands.py FOLDER"""

import json
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    include = f"-I{ROOT / 'include'} -std=c11 -Wall -Wextra"
    python = f"-DPy_LIMITED_API=0x030A0000 -isystem {sysconfig.get_paths()['include']}"
    commands = []
    for path in sorted(path for folder in ("src", "python", "examples") for path in (ROOT / folder).rglob("*.c")):
        flags = f"{include} {python}" if "python" in path.relative_to(ROOT).parts else include
        commands.append({"directory": str(ROOT), "file": str(path), "command": f"clang {flags} -c {path}"})
    (folder / "compile_commands.json").write_text(json.dumps(commands, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
