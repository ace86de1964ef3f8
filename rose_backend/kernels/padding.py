"""Triton kernel: zeros where an attention kernel wrote nothing, in padding longer than any real sequence."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _COLUMNS = 16, 256


@triton.jit(do_not_specialize=["written"])
def _clear_beyond_kernel(
    cu_seqlens_ptr, out_ptr, written, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):
    sequence = tl.program_id(0)
    first = tl.load(cu_seqlens_ptr + sequence) + written
    stop = tl.load(cu_seqlens_ptr + sequence + 1)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    for begin in range(first, stop, rows):
        row = begin + tl.arange(0, rows)
        place = out_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
        mask = (row < stop)[:, None] & (column < width)[None, :]
        tl.store(place, tl.zeros((rows, columns), out_ptr.dtype.element_ty), mask=mask)


def clear_beyond(out: torch.Tensor, cu_seqlens: torch.Tensor, written: int) -> None:
    """Set to 0, in place, the rows of each sequence after its first `written`.

    Args:
        out: `[tokens, width]`, contiguous.
        cu_seqlens: `[num_sequences + 1]` int32.
        written: rows of a sequence that are left as they are; no real sequence has more.
    """
    width = out.shape[1]
    grid = (len(cu_seqlens) - 1, triton.cdiv(width, _COLUMNS))
    _clear_beyond_kernel[grid](cu_seqlens, out, written, width=width, rows=_ROWS, columns=_COLUMNS)
