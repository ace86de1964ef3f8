"""Triton kernel: QK norm, RoPE and attention of short sequences in one launch, straight from the fused projection.

A sequence of at most 128 tokens fits one program's registers, so nothing is streamed and no softmax is rescaled.
General kernels spend several microseconds here on work for long sequences, and the rotation would be a launch of
its own. Grid: one program for each sequence and key head; where sequences are few, one for each query head and each
block of queries, which repeats the work on keys but uses the card.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LONGEST = 128

_FEW_PROGRAMS = 96  # fewer than the multiprocessors of the cards this is for
_QUERIES_APART = 32


@triton.jit
def _rotated_head(
    place, norm_weights, cos, sin, mask, eps, half: tl.constexpr, norms: tl.constexpr, turns: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    low = tl.load(place, mask=mask, other=0.0)
    high = tl.load(place + half, mask=mask, other=0.0)
    if norms or turns:
        low, high = low.to(tl.float32), high.to(tl.float32)
    if norms:
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / (2 * half) + eps)[:, None]
        column = tl.arange(0, half)
        low = low * scale * tl.load(norm_weights + column).to(tl.float32)[None, :]
        high = high * scale * tl.load(norm_weights + half + column).to(tl.float32)[None, :]
    if turns:
        low, high = low * cos - high * sin, high * cos + low * sin
    return low.to(dtype), high.to(dtype)


@triton.jit
def _short_attention_kernel(
    qkv_ptr, cu_seqlens_ptr, norm_weights_ptr, cos_sin_ptr, out_ptr, scale, eps, num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr, half: tl.constexpr, block: tl.constexpr, queries: tl.constexpr, members: tl.constexpr,
    causal: tl.constexpr, norms: tl.constexpr, rotate: tl.constexpr, by_token: tl.constexpr, places: tl.constexpr,
    left: tl.constexpr, right: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    first_head = tl.program_id(1) * members
    kv_head = first_head // (num_heads // num_kv_heads)
    start = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - start
    if tl.program_id(2) * queries >= length:
        return
    head_dim: tl.constexpr = 2 * half
    row_width: tl.constexpr = (num_heads + 2 * num_kv_heads) * head_dim
    dtype = qkv_ptr.dtype.element_ty
    column = tl.arange(0, half)
    key = tl.arange(0, block)
    key_mask = (key < length)[:, None] & (column >= 0)[None, :]
    key_rows = qkv_ptr + (start + key).to(tl.int64)[:, None] * row_width + column[None, :]
    query = tl.program_id(2) * queries + tl.arange(0, queries)
    query_mask = (query < length)[:, None] & (column >= 0)[None, :]
    query_rows = qkv_ptr + (start + query).to(tl.int64)[:, None] * row_width + column[None, :]
    key_cos = tl.zeros((block, half), tl.float32)
    key_sin = tl.zeros((block, half), tl.float32)
    query_cos = tl.zeros((queries, half), tl.float32)
    query_sin = tl.zeros((queries, half), tl.float32)
    if rotate:
        if by_token:
            key_row = start + key
            query_row = start + query
        else:
            # A segment of padding can be longer than the table; its look-ups must not leave it.
            key_row = tl.minimum(key, places - 1)
            query_row = tl.minimum(query, places - 1)
        key_angles = cos_sin_ptr + key_row[:, None] * head_dim + column[None, :]
        key_cos = tl.load(key_angles, mask=key_mask, other=0.0)
        key_sin = tl.load(key_angles + half, mask=key_mask, other=0.0)
        query_angles = cos_sin_ptr + query_row[:, None] * head_dim + column[None, :]
        query_cos = tl.load(query_angles, mask=query_mask, other=0.0)
        query_sin = tl.load(query_angles + half, mask=query_mask, other=0.0)
    k_low, k_high = _rotated_head(
        key_rows + (num_heads + kv_head) * head_dim, norm_weights_ptr + head_dim, key_cos, key_sin, key_mask, eps,
        half, norms, rotate, dtype,
    )  # fmt: skip
    values = key_rows + (num_heads + num_kv_heads + kv_head) * head_dim
    v_low = tl.load(values, mask=key_mask, other=0.0)
    v_high = tl.load(values + half, mask=key_mask, other=0.0)
    seen = (key < length)[None, :] & (query >= 0)[:, None]
    if causal:
        seen = seen & (key[None, :] <= query[:, None])
    if left >= 0:
        seen = seen & (key[None, :] >= query[:, None] - left) & (key[None, :] <= query[:, None] + right)
    out_rows = out_ptr + (start + query).to(tl.int64)[:, None] * (num_heads * head_dim) + column[None, :]
    for member in tl.static_range(members):
        head = first_head + member
        q_low, q_high = _rotated_head(
            query_rows + head * head_dim, norm_weights_ptr, query_cos, query_sin, query_mask, eps, half, norms, rotate,
            dtype,
        )  # fmt: skip
        scores = tl.dot(q_low, tl.trans(k_low))
        scores = tl.dot(q_high, tl.trans(k_high), scores) * scale
        scores = tl.where(seen, scores, -float("inf"))
        weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        total = tl.sum(weights, axis=1)[:, None]
        weights = weights.to(dtype)
        place = out_rows + head * head_dim
        tl.store(place, (tl.dot(weights, v_low) / total).to(dtype), mask=query_mask)
        tl.store(place + half, (tl.dot(weights, v_high) / total).to(dtype), mask=query_mask)
    if tl.program_id(2) == tl.num_programs(2) - 1:
        # Only padding is longer than a block. What its memory held before must not go on to other kernels.
        for begin in range(block, length, queries):
            rest = begin + tl.arange(0, queries)
            rest_mask = (rest < length)[:, None] & (column >= 0)[None, :]
            rest_rows = out_ptr + (start + rest).to(tl.int64)[:, None] * (num_heads * head_dim) + column[None, :]
            for member in tl.static_range(members):
                place = rest_rows + (first_head + member) * head_dim
                tl.store(place, tl.zeros((queries, half), dtype), mask=rest_mask)
                tl.store(place + half, tl.zeros((queries, half), dtype), mask=rest_mask)


def short_attention(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    *,
    causal: bool,
    norm_weights: torch.Tensor | None = None,
    cos_sin: torch.Tensor | None = None,
    eps: float = 0.0,
    window: tuple[int, int] | None = None,
    by_token: bool = False,
) -> torch.Tensor:
    """Attention within each sequence, after the norm and the rotation of queries and keys, each where it is given.

    Args:
        qkv: `[tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, contiguous; not changed.
        cu_seqlens: `[num_sequences + 1]` int32.
        max_seqlen: at most `LONGEST`. Rows of a longer (padding) sequence beyond its block are 0.
        num_heads: query heads; `num_kv_heads` divides it.
        num_kv_heads: key and value heads.
        scale: of the scores.
        causal: whether a token sees only earlier ones.
        norm_weights: `[2, head_dim]`, for queries and for keys.
        cos_sin: `[max_positions, head_dim]` float32, or `[tokens, head_dim]` where `by_token`.
        eps: of the norm.
        window: tokens seen to the left and to the right; None: all.
        by_token: whether each token has a row of its own in `cos_sin`.

    Returns:
        `[tokens, num_heads * head_dim]`.
    """
    head_dim = qkv.shape[1] // (num_heads + 2 * num_kv_heads)
    out = torch.empty((len(qkv), num_heads * head_dim), dtype=qkv.dtype, device=qkv.device)
    block = max(16, triton.next_power_of_2(min(max_seqlen, LONGEST)))
    sequences = len(cu_seqlens) - 1
    spread = sequences * num_kv_heads < _FEW_PROGRAMS
    queries = min(block, _QUERIES_APART) if spread else block
    members = 1 if spread else num_heads // num_kv_heads
    norms, rotate = norm_weights is not None, cos_sin is not None
    places = 1 if cos_sin is None or by_token else len(cos_sin)
    left, right = window or (-1, -1)
    _short_attention_kernel[(sequences, num_heads // members, block // queries)](
        qkv, cu_seqlens, norm_weights if norms else qkv, cos_sin if rotate else qkv, out, scale, eps,
        num_heads=num_heads, num_kv_heads=num_kv_heads, half=head_dim // 2, block=block, queries=queries,
        members=members, causal=causal, norms=norms, rotate=rotate, by_token=by_token, places=places, left=left,
        right=right, num_warps=8 if queries == LONGEST else 4,
    )  # fmt: skip
    return out
