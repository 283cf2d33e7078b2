#!/bin/sh
# Make the virtual environment of tests/ecosystem: setup_ecosystem.sh FOLDER
# It sees the packages of .venv, so torch is not installed twice, and .venv stays as it is.
set -eu
folder=$1
python=.venv/bin/python
options=
if grep -q '^include-system-site-packages = true' .venv/pyvenv.cfg; then options=--system-site-packages; fi
echo "setting up $folder (once; this downloads PEFT, trl, timm, diffusers and Lightning)"
"$python" -m venv $options "$folder"
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
"$python" -c "$packages" > "$("$folder/bin/python" -c "$packages")/packages-of-memscale.pth"

# The torch of .venv stays, whatever a package asks for.
version=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))')
echo "torch==$version" > "$folder/constraints.txt"
wanted=tests/ecosystem/requirements.txt
if ! grep -q "^torch==${version%%+*}\$" requirements.txt; then
    wanted=$folder/requirements-without-torchvision.txt
    grep -v '^torchvision==' tests/ecosystem/requirements.txt > "$wanted"
fi
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c "$folder/constraints.txt" -r "$wanted"
