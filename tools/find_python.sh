#!/usr/bin/env bash
# Print an interpreter the server's wheel can run with: Python 3.10 to 3.12, venv, shared libpython.
set -u
check='
import sys, sysconfig, pathlib, venv
v = sys.version_info
name = f"libpython{v.major}.{v.minor}.so.1.0"
lib = pathlib.Path(sysconfig.get_config_var("LIBDIR") or "")
arch = sysconfig.get_config_var("MULTIARCH") or ""
ok = (3, 10) <= v[:2] <= (3, 12) and any((d / name).is_file() for d in (lib, lib / arch))
sys.exit(not ok)'
for python in python3 python3.12 python3.11 python3.10; do
  path=$(command -v "$python") && "$path" -c "$check" 2>/dev/null && { "$path" -c "import sys; print(sys.executable)"; exit 0; }
done
echo "no usable Python: install 3.10, 3.11 or 3.12 with venv and its shared library (Debian: python3-venv libpython3-dev)" >&2
exit 1
