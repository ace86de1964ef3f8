"""Triton kernel: ragged attention in blocks of 64 queries, for batches that larger blocks do not spread over the card.

In blocks of 128 queries one sequence of 512 tokens with 16 heads keeps 64 of an H200's 132 multiprocessors busy;
blocks of 64 use them all. Keys stream past with a running softmax (Milakov and Gimelshein, arXiv:1805.02867; Dao et
al., arXiv:2205.14135), loaded through tensor descriptors (the bulk copy engine of Hopper and later) straight from the
fused projection. Blocks that are seen whole take no mask. Grid: blocks of the longest sequence, heads, sequences.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

_QUERIES, _KEYS = 64, 64


@triton.jit
def _attend_block(q, k, v, seen, masked: tl.constexpr, scale, peak, total, mixed):
    scores = tl.dot(q, k.T)
    if masked:
        scores = tl.where(seen, scores, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    weights = tl.exp2((scores - new_peak[:, None]) * scale)
    shrink = tl.exp2((peak - new_peak) * scale)
    total = total * shrink + tl.sum(weights, axis=1)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None])
    return new_peak, total, mixed


@triton.jit
def _stream_attention_kernel(
    q_tiles, kv_tiles, cu_seqlens_ptr, out_ptr, scale, num_heads: tl.constexpr, num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(2), tl.program_id(1)
    start = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - start
    first = tl.program_id(0) * queries
    if first >= length:
        return
    k_column = (num_heads + head // (num_heads // num_kv_heads)) * head_dim
    v_column = k_column + num_kv_heads * head_dim
    q = q_tiles.load([start + first, head * head_dim])
    query = first + tl.arange(0, queries)
    key = tl.arange(0, keys)
    peak = tl.full((queries,), -float("inf"), tl.float32)
    total = tl.zeros((queries,), tl.float32)
    mixed = tl.zeros((queries, head_dim), tl.float32)
    whole = (first if causal else length) // keys * keys
    end = tl.minimum(length, first + queries) if causal else length
    for begin in range(0, whole, keys):
        k = kv_tiles.load([start + begin, k_column])
        v = kv_tiles.load([start + begin, v_column])
        peak, total, mixed = _attend_block(q, k, v, query, False, scale, peak, total, mixed)
    for begin in range(whole, end, keys):
        # What lies behind the sequence is another's and not seen. A weight of 0 does not hide a NaN there.
        k = kv_tiles.load([start + begin, k_column])
        v = kv_tiles.load([start + begin, v_column])
        if begin + keys > length:
            v = tl.where((begin + key < length)[:, None], v, 0.0)
        seen = (begin + key < length)[None, :] & (query >= 0)[:, None]
        if causal:
            seen = seen & (begin + key[None, :] <= query[:, None])
        peak, total, mixed = _attend_block(q, k, v, seen, True, scale, peak, total, mixed)
    column = tl.arange(0, head_dim)
    place = out_ptr + (start + query).to(tl.int64)[:, None] * (num_heads * head_dim) + head * head_dim + column[None, :]
    tl.store(place, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=(query < length)[:, None])
    if tl.program_id(0) == tl.num_programs(0) - 1:
        # Only padding is longer than the grid. What its memory held before must not go on to other kernels.
        nothing = tl.zeros((queries, head_dim), out_ptr.dtype.element_ty)
        for begin in range(first + queries, length, queries):
            rest = begin + tl.arange(0, queries)
            rows = out_ptr + (start + rest).to(tl.int64)[:, None] * (num_heads * head_dim)
            tl.store(rows + head * head_dim + column[None, :], nothing, mask=(rest < length)[:, None])


def stream_attention(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    *,
    causal: bool,
) -> torch.Tensor:
    """Attention within each sequence.

    Args:
        qkv: `[tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, contiguous; not changed.
        cu_seqlens: `[num_sequences + 1]` int32.
        max_seqlen: rows of a longer (padding) sequence beyond its last block are 0.
        num_heads: query heads; `num_kv_heads` divides it.
        num_kv_heads: key and value heads.
        scale: of the scores, above 0.
        causal: whether a token sees only earlier ones.

    Returns:
        `[tokens, num_heads * head_dim]`.
    """
    head_dim = qkv.shape[1] // (num_heads + 2 * num_kv_heads)
    out = torch.empty((len(qkv), num_heads * head_dim), dtype=qkv.dtype, device=qkv.device)
    grid = (triton.cdiv(max_seqlen, _QUERIES), num_heads, len(cu_seqlens) - 1)
    _stream_attention_kernel[grid](
        TensorDescriptor.from_tensor(qkv, [_QUERIES, head_dim]), TensorDescriptor.from_tensor(qkv, [_KEYS, head_dim]),
        cu_seqlens, out, scale / math.log(2), num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
        queries=_QUERIES, keys=_KEYS, causal=causal, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out
