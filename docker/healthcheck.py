"""Status 0 if every model that was loaded answers for itself, else 1: what the server's own readiness does not say.

`rose serve` unloads a model whose process died or hangs; Triton's `/v2/health/ready` does not notice. Needs nothing
beside the standard library; ROSE_HTTP is the server's address.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request

_SECONDS = 4.0


def main() -> int:
    """Ask the server for its models."""
    address = os.environ.get("ROSE_HTTP", "127.0.0.1:8000")
    request = urllib.request.Request(f"http://{address}/v2/repository/index", data=b"{}", method="POST")
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 (http, as written above)
            index = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError) as error:
        print(f"no answer from {address}: {error}", file=sys.stderr)
        return 1
    loaded = [model for model in index if model.get("state")]  # without a state: in the folder, never loaded
    failed = [model["name"] for model in loaded if model["state"] != "READY"]
    if failed or not loaded:
        print(f"not ready: {', '.join(failed) or 'no model is loaded'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
