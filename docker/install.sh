#!/usr/bin/env bash
# Install this project for serving into a virtual environment of its own: install.sh SOURCE VENV gpu|server
# gpu: tritonserver comes with the image; server: it comes as a wheel, with default weights. Both images call this.
# TORCH names the build that goes first and alone, TORCH_INDEX where it comes from, PYTHON the interpreter.
set -euo pipefail
if [ $# -ne 3 ] || { [ "$3" != gpu ] && [ "$3" != server ]; }; then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
fi
source=$1 venv=$2 extra=$3
"${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input --no-cache-dir "$@"; }
pip install -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "${TORCH:-torch==2.11.0}"
# numpy 1: what the Python backend of Triton 24.10 was built for.
pip install -q 'numpy<2' "$source[$extra,gateway,tracing]"
"$venv/bin/rose" --help > /dev/null
