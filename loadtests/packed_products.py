"""Products of an encoder's layers on the CPU, by rows: MKL's with plain weights, oneDNN's with packed ones, in turn.

Each weight of six layers once, so that none is still in a core's own cache. `first` is a product's first time with so
many rows, when oneDNN generates its code.

    python loadtests/packed_products.py [--hidden 384] [--output loadtests/results/NAME.json]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import rose_backend  # noqa: F401  (before torch, whose threads then wait as those of an engine do)

# isort: split
import torch
from environment import describe_machine, write_result

from rose_backend.kernels import packing

_ROWS = (16, 30, 60, 120, 240, 480, 1024, 4096)
_LAYERS = 6
_ROUNDS = 15


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    h = args.hidden
    plain = [
        torch.randn(out, into) for _ in range(_LAYERS) for out, into in ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h))
    ]
    packed = [packing.laid_out(weight) for weight in plain]
    rows = [measured(count, plain, packed) for count in _ROWS]
    result = {"benchmark": "packed_products", "hidden": h, "layers": _LAYERS, "threads": torch.get_num_threads()}
    pays = {
        f"{width} x {depth}": packing.packing_pays(width, depth)
        for width, depth in dict.fromkeys(w.shape for w in plain)
    }
    print(pays)
    result |= {"packing_pays": pays, "rows": rows, "machine": describe_machine()}
    if args.output is not None:
        write_result(args.output, result)


@torch.inference_mode()
def measured(count: int, plain: list[torch.Tensor], packed: list[torch.Tensor]) -> dict[str, Any]:
    """Medians of all layers' products in ms, and the largest difference between the two."""
    inputs = {weight.shape[1]: torch.randn(count, weight.shape[1]) for weight in plain}
    biases = {weight.shape[0]: torch.randn(weight.shape[0]) for weight in plain}

    def seconds(weights: list[torch.Tensor]) -> float:
        began = time.perf_counter()
        for weight in weights:
            packing.product(inputs[weight.shape[1]], weight, biases[weight.shape[0]])
        return time.perf_counter() - began

    seconds(plain)
    first = seconds(packed)
    times = [(seconds(plain), seconds(packed)) for _ in range(_ROUNDS)]
    plain_ms, packed_ms = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    x, bias = inputs[plain[0].shape[1]], biases[plain[0].shape[0]]
    difference = packing.product(x, packed[0], bias) - packing.product(x, plain[0], bias)
    row = {
        "rows": count,
        "plain_ms": round(plain_ms, 2),
        "packed_ms": round(packed_ms, 2),
        "ratio": round(packed_ms / plain_ms, 2),
        "first_ms": round(first * 1e3, 2),
        "largest_difference": float(difference.abs().max()),
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
