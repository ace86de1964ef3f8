"""Products with weights that oneDNN has laid out for itself, where those are quicker than MKL's with plain ones.

Laid out once, at load, a matrix is read in the order the product needs it in; MKL puts it in order again in every step.
On two cores of an AMD EPYC MiniLM's products took 0.74 to 0.85 of the time. On 16 of an Intel Xeon, where MKL is at
home, BERT base's took 0.6 to 0.9 of it, but MiniLM's, by threads that sleep between loops, up to 1.6 times as long for
a short text (`loadtests/packed_products.py`). So each shape is timed.
"""

from __future__ import annotations

import functools
import logging
import statistics
import threading
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

logger = logging.getLogger(__name__)

_FEW, _MANY = 32, 256  # rows: a short text, and a batch; packing has to pay for both
_LAID_OUT_FOR = 128  # rows, by which oneDNN picks a layout; others are multiplied as quickly
_COLD_BYTES = 32 << 20  # of weights that take turns in the timing, as those of the layers do
_MOST_COLD = 9  # weights
_ROUNDS = 4  # at most
_DISTURBED = 1.5  # times the shortest: a median that others had a part in
_NO_SLOWER = 1.05  # of the plain product's time; less is what one time differs from the next by
_STEPS = ((64, 4), (256, 8), (1024, 32))  # up to so many rows in steps of so many
_STEP_BEYOND = 128

_shapes: set[tuple[int, ...]] = set()
"""Of the weights that are packed in this process."""
_pays: dict[tuple[int, int], bool] = {}
_timing = threading.Lock()


def pack(weight: torch.Tensor) -> torch.Tensor:
    """A matrix `[out, in]` to be multiplied by `product` alone; in float32 on a CPU it may come back laid out anew."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not packing_pays(*weight.shape):
        return weight
    _shapes.add(tuple(weight.shape))
    return laid_out(weight)


def padded_rows(rows: int) -> int:
    """With how many rows to compute instead of so many, where weights are packed.

    oneDNN generates code for every number of rows, in half a millisecond a product, and keeps half a megabyte of it for
    good. So there are few numbers: 64 up to 1,024. `product` fills up what comes with another; a batch that is filled
    up once need not be copied for each of them.
    """
    return _on_grid(rows) if _shapes else rows


@functools.lru_cache(maxsize=4096)
def _on_grid(rows: int) -> int:
    step = next((step for most, step in _STEPS if rows <= most), _STEP_BEYOND)
    return -(-rows // step) * step


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, gelu: bool = False
) -> torch.Tensor:
    """`x @ weight.T + bias`, with a weight as it is or as `pack` made it.

    Args:
        x: `[rows, in]`.
        weight: `[out, in]`.
        bias: `[out]`.
        gelu: whether the exact (erf) GELU of that is wanted; a packed product makes it as it writes.

    Returns:
        `[rows, out]`.
    """
    if weight.is_mkldnn:
        rows = len(x)
        missing = _on_grid(rows) - rows
        if missing:
            x = F.pad(x, (0, 0, 0, missing))
        then, how = ("gelu", "none") if gelu else ("none", "")
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], how)
        return out[:rows] if missing else out
    out = F.linear(x, weight, bias)
    return F.gelu(out) if gelu else out


def packing_pays(width: int, depth: int) -> bool:
    """Whether packed products are the quicker ones on this machine, for weights `[width, depth]`: timed once."""
    if not torch.backends.mkldnn.is_available():
        return False
    with _timing:  # two at a time would slow each other down, and models that load together must agree
        if (width, depth) not in _pays:
            _pays[width, depth] = _timed(width, depth)
        return _pays[width, depth]


def _timed(width: int, depth: int) -> bool:
    weight = _drawn(width, depth)
    count = max(1, min(_MOST_COLD, _COLD_BYTES // (4 * width * depth)))
    plain = [weight.clone() for _ in range(count)]
    packed = [laid_out(weight) for _ in range(count)]
    ratios = {rows: _ratio(rows, packed, plain) for rows in (_FEW, _MANY)}
    rounded = {rows: round(ratio, 2) for rows, ratio in ratios.items()}
    logger.info("packed weights timed", extra={"width": width, "depth": depth, "ratios": rounded})
    return max(ratios.values()) < _NO_SLOWER


def laid_out(weight: torch.Tensor) -> torch.Tensor:
    """A float32 matrix on the CPU as oneDNN reads it."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _LAID_OUT_FOR)
    return packed


def _ratio(rows: int, packed: Sequence[torch.Tensor], plain: Sequence[torch.Tensor]) -> float:
    """Seconds of a product with one of the first over those with one of the second, all in turn.

    The shortest count: others hold the cores meanwhile where several engines start, and the medians of engines that did
    so on two cores were anything from 0.2 to 3.9.
    """
    x, bias = _drawn(rows, plain[0].shape[1]), _drawn(len(plain[0]))
    product(x, packed[0], bias)  # its code is generated
    product(x, plain[0], bias)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for pair in zip(packed, plain, strict=True):
            for weight, own in zip(pair, times, strict=True):
                own.append(_seconds(x, weight, bias))
        if all(statistics.median(own) < _DISTURBED * min(own) for own in times):
            break
    return min(times[0]) / min(times[1])


def _drawn(*shape: int) -> torch.Tensor:
    """Numbers to time with, whatever a program's defaults are; its own draws stay what they would be without these."""
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")


def _seconds(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> float:
    began = time.perf_counter()
    product(x, weight, bias)
    return time.perf_counter() - began
