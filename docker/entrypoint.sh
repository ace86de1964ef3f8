#!/bin/sh
# Serve, once the machine has been found fit for it: a /dev/shm too small ends here, not in the middle of a request.
set -eu
rose doctor --host 0.0.0.0 >&2
exec rose serve --host 0.0.0.0 "$@"
