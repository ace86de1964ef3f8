#!/usr/bin/env bash
# Install this project with its extras into a virtual environment: install.sh PYTHON VENV TORCH EXTRAS
# torch goes first and alone: the build that is named is the one that stays.
set -euo pipefail
python=$1 venv=$2 torch=$3 extras=$4
[ -n "$python" ] || exit 1

# Run a command with a line that says what is going on and for how long.
step() {
  local what=$1 began=$SECONDS every=15
  shift
  if [ -t 2 ]; then every=1; fi
  "$@" &
  local pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 2 ]; then
      printf '\r%s … %d s ' "$what" $((SECONDS - began)) >&2
    elif [ $(((SECONDS - began) % every)) -eq 0 ]; then
      printf '%s … %d s\n' "$what" $((SECONDS - began)) >&2
    fi
    sleep 1
  done
  wait "$pid" || { printf '\n%s: failed\n' "$what" >&2; exit 1; }
  if [ -t 2 ]; then printf '\r'; fi
  printf '%s: done in %d s\n' "$what" $((SECONDS - began)) >&2
}
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

if [ ! -x "$venv/bin/python" ]; then
  step "making $venv with $("$python" --version)" "$python" -m venv "$venv"
  # What Python brings along resolves for longer than it downloads.
  step "renewing pip" pip install -q --no-compile --upgrade pip
fi
# Most of what is installed is never imported; compiling it beforehand takes longer than downloading it.
step "installing $torch" pip install -q --no-compile "$torch" 'numpy<2'
step "installing the project with [$extras]" pip install -q --no-compile -e ".[$extras]"
