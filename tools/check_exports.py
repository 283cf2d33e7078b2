"""Exported symbols and needed libraries of the built binaries: check_exports.py BUILD_FOLDER

libmemscale exports exactly what memscale.h declares; the extension exports its init function alone and uses nothing
outside of Python's stable ABI; neither links against torch or CUDA.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_LIBRARIES = re.compile(r"^(libc|libm|libpthread|libdl|ld-linux.*|libgcc_s)\.so")


def symbols(path: Path, *options: str) -> set[str]:
    output = subprocess.run(["nm", "-D", *options, str(path)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines()}


def needed(path: Path) -> list[str]:
    output = subprocess.run(["readelf", "-d", str(path)], check=True, capture_output=True, text=True).stdout
    return re.findall(r"NEEDED.*\[(.*)\]", output)


def main(build: Path) -> int:
    problems = []
    declared = set(re.findall(r"^MS_API .*?(\w+)\(", (ROOT / "include/memscale/memscale.h").read_text(), re.MULTILINE))
    listed = set((ROOT / "tools/exports.txt").read_text().split())
    library, extension = build / "libmemscale.so", build / "python/memscale/_core.abi3.so"
    exported = symbols(library, "--defined-only")
    if declared != listed:
        problems.append(f"memscale.h and tools/exports.txt differ: {sorted(declared ^ listed)}")
    if exported != listed:
        problems.append(f"libmemscale.so and tools/exports.txt differ: {sorted(exported ^ listed)}")
    if (own := symbols(extension, "--defined-only")) != {"PyInit__core"}:
        problems.append(f"the extension exports {sorted(own)}")
    private = [name for name in symbols(extension, "--undefined-only") if name.startswith("_Py") and name not in STABLE]
    if private:
        problems.append(f"the extension uses private symbols of Python: {private}")
    for path in (library, extension):
        wrong = [name for name in needed(path) if not ALLOWED_LIBRARIES.match(name)]
        if wrong:
            problems.append(f"{path.name} needs {wrong}")
    print("\n".join(problems))
    return 1 if problems else 0


# Underscored, and part of the stable ABI all the same (PY_SSIZE_T_CLEAN names the _SizeT ones).
STABLE = {
    "_PyArg_ParseTupleAndKeywords_SizeT",
    "_PyArg_ParseTuple_SizeT",
    "_PyObject_CallFunction_SizeT",
    "_PyObject_CallMethod_SizeT",
    "_Py_BuildValue_SizeT",
    "_Py_Dealloc",
    "_Py_EllipsisObject",
    "_Py_FalseStruct",
    "_Py_NoneStruct",
    "_Py_TrueStruct",
}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
