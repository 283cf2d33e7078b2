#!/bin/sh
# Make .venv with the pinned requirements. A torch that $PYTHON already has is kept.
set -eu
python=${PYTHON:-python3}
"$python" - <<'END' || exit 1
import sys
if sys.version_info < (3, 10):
    sys.exit(f"MemScale needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}. Try: make PYTHON=python3.12 ...")
try:
    import venv, ensurepip  # noqa
except ImportError:
    sys.exit("Python's venv module is missing (on Debian and Ubuntu: apt install python3-venv)")
END
wanted=requirements.txt
options=
if "$python" -c 'import torch, sys; sys.exit(tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 4))' 2>/dev/null
then
    echo "using the torch of $python"
    options=--system-site-packages
    wanted=.venv/requirements-without-torch.txt
fi
echo "setting up .venv (once; the first time this downloads torch and transformers)"
"$python" -m venv $options .venv
if [ "$wanted" != requirements.txt ]; then grep -v '^torch==' requirements.txt > "$wanted"; fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$wanted"
