"""Every Triton kernel in Triton's interpreter on the CPU, against plain torch, on odd sizes.

Not collected by itself: the interpreter is chosen when the kernels are imported, so `test_kernels.py` runs this file
in a process of its own, with TRITON_INTERPRET=1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rose_backend.config import PoolingMode
from rose_backend.kernels import activations, codes, fused_gemm, gemm, norms, padding, ragged, rope
from rose_backend.kernels import short_attention as short_attention_module
from rose_backend.kernels.gemm import Tiling
from rose_backend.kernels.ops import Nonlinearity
from rose_backend.kernels.short_attention import short_attention
from rose_backend.kernels.stream_attention import stream_attention
from rose_backend.kernels.torch_ops import TorchOps

TORCH = TorchOps()
EPS = 1e-6
WIDTHS = (1, 33, 384, 1000)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the expected values' size."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert torch.isfinite(actual).all()
    allowed = 1e-5 * max(1.0, float(expected.abs().max()))
    assert float((actual.double() - expected.double()).abs().max()) <= allowed


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def offsets(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(width: int) -> None:
    x, weight = rand(5, width), rand(width)
    assert_close(norms.rms_norm(x, weight, EPS), F.rms_norm(x, (width,), weight, EPS))


@pytest.mark.parametrize("width", WIDTHS)
def test_embed_rms_norm(width: int) -> None:
    ids, words, weight = torch.tensor([6, 0, 3, 3], dtype=torch.int32), rand(7, width), rand(width)
    actual, expected = (ops.embed_rms_norm(ids, words, weight, EPS) for ops in (norms, TORCH))
    assert torch.equal(actual[0], expected[0])
    assert_close(actual[1], expected[1])


@pytest.mark.parametrize("width", WIDTHS)
def test_norm_add_rms_norm(width: int) -> None:
    x, inner, residual, weight = rand(5, width), rand(width), rand(5, width), rand(width)
    total = residual + F.rms_norm(x, (width,), inner, EPS)
    for ops in (norms, TORCH):
        added = residual.clone()
        assert_close(
            ops.norm_add_rms_norm(x.clone(), inner, added, weight, EPS), F.rms_norm(total, (width,), weight, EPS)
        )
        assert_close(added, total)


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(width: int) -> None:
    x, weight, bias = rand(5, width), rand(width), rand(width)
    assert_close(norms.layer_norm(x, weight, bias, EPS), F.layer_norm(x, (width,), weight, bias, EPS))


@pytest.mark.parametrize("biased", [True, False])
def test_linear_add_layer_norm(biased: bool) -> None:
    x, weight, residual, norm_weight, norm_bias = rand(5, 16), rand(24, 16), rand(5, 24), rand(24), rand(24)
    bias = rand(24) if biased else None
    total = residual + F.linear(x, weight, bias)
    actual = TORCH.linear_add_layer_norm(x, weight, residual, norm_weight, norm_bias, EPS, bias)
    assert_close(actual, F.layer_norm(total, (24,), norm_weight, norm_bias, EPS))
    assert_close(residual, total)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_layer_norm(width: int) -> None:
    x, residual, weight, bias = rand(5, width), rand(5, width), rand(width), rand(width)
    expected = F.layer_norm(x + residual, (width,), weight, bias, EPS)
    assert_close(norms.add_layer_norm(x, residual, weight, bias, EPS), expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_embed_layer_norm(width: int) -> None:
    ids = torch.tensor([6, 0, 3, 3, 1], dtype=torch.int32)
    places = torch.tensor([0, 1, 0, 1, 2], dtype=torch.int32)
    tables, weight, bias = (rand(7, width), rand(3, width)), rand(width), rand(width)
    expected = TORCH.embed_layer_norm(ids, places, *tables, weight, bias, EPS)
    assert_close(norms.embed_layer_norm(ids, places, *tables, weight, bias, EPS), expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_embed_layer_norm_without_positions(width: int) -> None:
    ids = torch.tensor([6, 0, 3, 3, 1], dtype=torch.int32)
    words, weight, bias = rand(7, width), rand(width), rand(width)
    expected = F.layer_norm(words[ids.long()], (width,), weight, bias, EPS)
    assert_close(norms.embed_layer_norm(ids, None, words, None, weight, bias, EPS), expected)
    assert_close(TORCH.embed_layer_norm(ids, None, words, None, weight, bias, EPS), expected)


def test_norm_weights_may_be_wider_than_what_is_normed() -> None:
    """As Gemma's are, whose one is added in float32."""
    x, weight, residual = rand(3, 40).half(), rand(40), rand(3, 40).half()
    assert norms.rms_norm(x, weight, EPS).dtype is torch.float16
    out = norms.norm_add_rms_norm(x.clone(), weight, residual.clone(), weight, EPS)
    total = residual.float() + F.rms_norm(x.float(), (40,), weight, EPS)
    assert out.dtype is torch.float16
    assert float((out.float() - F.rms_norm(total, (40,), weight, EPS)).abs().max()) < 4e-3


def test_half_precision_is_rounded_once() -> None:
    """In float16: the interpreter does not round to the nearest bfloat16 as GPUs do."""
    x, weight = rand(3, 40).half(), rand(40).half()
    exact = F.rms_norm(x.float(), (40,), weight.float(), EPS)
    out = norms.rms_norm(x, weight, EPS)
    assert out.dtype is torch.float16
    half_a_step = np.spacing(np.abs(out.numpy())).astype(np.float64) / 2
    assert (np.abs(out.double().numpy() - exact.double().numpy()) <= half_a_step * 1.01).all()


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2), (5, 5), (14, 2)])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_qk_norm_rope(heads: int, kv_heads: int, head_dim: int) -> None:
    qkv = rand(5, (heads + 2 * kv_heads) * head_dim)
    norm_weights, cos_sin = rand(2, head_dim), rand(9, head_dim)
    places = torch.tensor([0, 8, 3, 0, 1], dtype=torch.int32)
    expected = qkv.clone()
    TORCH.qk_norm_rope(expected, norm_weights, cos_sin, places, heads, kv_heads, EPS)
    values = qkv[:, (heads + kv_heads) * head_dim :].clone()
    rope.qk_norm_rope(qkv, norm_weights, cos_sin, places, heads, kv_heads, EPS)
    assert_close(qkv, expected)
    assert torch.equal(qkv[:, (heads + kv_heads) * head_dim :], values)


NONLINEARITIES = {
    Nonlinearity.SILU: F.silu,
    Nonlinearity.GELU: F.gelu,
    Nonlinearity.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    Nonlinearity.RELU: F.relu,
}


@pytest.mark.parametrize("width", [1, 33, 1536, 2049])
@pytest.mark.parametrize("kind", NONLINEARITIES, ids=lambda kind: kind.value)
def test_gated(kind: Nonlinearity, width: int) -> None:
    gate_up = 3 * rand(3, 2 * width)
    assert_close(activations.gated(gate_up, kind), NONLINEARITIES[kind](gate_up[:, :width]) * gate_up[:, width:])


@pytest.mark.parametrize("kind", NONLINEARITIES, ids=lambda kind: kind.value)
def test_the_steps_in_torch_know_every_nonlinearity(kind: Nonlinearity) -> None:
    x, gate_up, bias = rand(3, 8), rand(10, 8), rand(10)
    gate, up = (x @ gate_up.T + bias).chunk(2, dim=1)
    assert_close(TORCH.glu(x, gate_up, kind, bias), NONLINEARITIES[kind](gate) * up)


@pytest.mark.parametrize("width", [1, 33, 1536, 2049])
def test_gelu(width: int) -> None:
    x = 3 * rand(3, width)
    assert_close(activations.gelu(x.clone()), F.gelu(x))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (5, 5)])
def test_rope_without_a_norm(heads: int, kv_heads: int) -> None:
    """Against complex numbers: each pair of halves is turned by its angle."""
    head_dim = 16
    qkv = rand(5, (heads + 2 * kv_heads) * head_dim)
    angles = rand(9, head_dim // 2)
    places = torch.tensor([0, 8, 3, 0, 1], dtype=torch.int32)
    parts = qkv.view(5, -1, head_dim)[:, : heads + kv_heads]
    pairs = torch.complex(*parts.chunk(2, dim=-1)) * torch.polar(torch.ones(()), angles[places.long()])[:, None]
    expected = torch.cat([torch.cat([pairs.real, pairs.imag], -1), qkv.view(5, -1, head_dim)[:, heads + kv_heads :]], 1)
    for turn in (rope.qk_norm_rope, TORCH.qk_norm_rope):
        actual = qkv.clone()
        turn(actual, None, torch.cat([angles.cos(), angles.sin()], 1), places, heads, kv_heads, EPS)
        assert_close(actual, expected.flatten(1))


LENGTHS = {"one": (1,), "mixed": (1, 5, 130, 2), "equal": (7, 7, 7), "long": (1025,), "with empty": (3, 2, 0, 0)}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("limit", [2048, 4])
def test_positions(lengths: tuple[int, ...], limit: int) -> None:
    expected = [min(place, limit - 1) for length in lengths for place in range(length)]
    places = ragged.positions(offsets(lengths), sum(lengths), limit)
    assert places.dtype is torch.int32
    assert places.tolist() == expected


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("limit", [2048, 6])
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_counted_positions(lengths: tuple[int, ...], limit: int, pad: int) -> None:
    ids = torch.randint(0, 4, (sum(lengths),), dtype=torch.int32)
    expected = []
    for part in ids.split(list(lengths)):
        count = 0
        for token in part.tolist():
            count += token != pad
            expected.append(min(pad + count if token != pad else pad, limit - 1))
    for places in (ragged, TORCH):
        actual = places.counted_positions(ids, offsets(lengths), pad, limit)
        assert actual.dtype is torch.int32
        assert actual.tolist() == expected


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("padding", [None, 7])
def test_token_types(lengths: tuple[int, ...], padding: int | None) -> None:
    """From nowhere, from the middle, behind the end; padding is a sequence without a number of its own."""
    begins = [(0, length // 2, length, length + 1)[index % 4] for index, length in enumerate(lengths)]
    expected = []
    for length, begin in zip(lengths, begins, strict=True):
        expected += [int(0 < begin <= place) for place in range(length)]
    cu_seqlens = offsets(lengths if padding is None else (*lengths, padding))
    expected += [0] * (padding or 0)
    for types in (ragged, TORCH):
        actual = types.token_types(cu_seqlens, torch.tensor(begins, dtype=torch.int32), len(expected))
        assert actual.dtype is torch.int32
        assert actual.tolist() == expected


LONE_MODES = (PoolingMode.MEAN, PoolingMode.CLS, PoolingMode.LAST)


@pytest.mark.parametrize("mode", LONE_MODES)
@pytest.mark.parametrize("lengths", [(1,), (1, 5, 130, 2)])
@pytest.mark.parametrize("width", [33, 100])
def test_pool(lengths: tuple[int, ...], mode: PoolingMode, width: int) -> None:
    hidden = rand(sum(lengths), width)
    rows = []
    flags = [index % 2 for index in range(len(lengths))]
    for part, flag in zip(hidden.split(list(lengths)), flags, strict=True):
        row = {PoolingMode.MEAN: part.mean(0), PoolingMode.CLS: part[0], PoolingMode.LAST: part[-1]}[mode]
        rows.append(F.normalize(row, dim=0) if flag else row)
    normalize = torch.tensor(flags, dtype=torch.int32)
    assert_close(ragged.pool(hidden, offsets(lengths), normalize, mode), torch.stack(rows))


@pytest.mark.parametrize("mode", LONE_MODES)
def test_pool_of_a_padded_batch(mode: PoolingMode) -> None:
    """Two sequences, one of padding, one row unused: as `InputStaging` lays them out for four rows."""
    hidden = rand(16, 24)
    cu_seqlens = torch.tensor([0, 3, 7, 16, 16, 16], dtype=torch.int32)
    normalize = torch.tensor([1, 1, 0, 0], dtype=torch.int32)
    out = ragged.pool(hidden, cu_seqlens, normalize, mode)
    assert torch.isfinite(out).all()
    assert_close(out[:2], TORCH.pool(hidden, cu_seqlens[:3], normalize[:2], mode))


MANY_MODES = [(mode,) for mode in PoolingMode] + [tuple(PoolingMode), tuple(PoolingMode)[::-1]]


def pooled(hidden: torch.Tensor, mode: PoolingMode, skipped: int) -> torch.Tensor:
    """One sequence's `[tokens, width]`, by the definitions."""
    kept = hidden[skipped:]
    if mode is PoolingMode.CLS:
        return hidden[skipped if len(kept) else 0]
    if len(kept) == 0:
        return torch.zeros(hidden.shape[1])
    weights = torch.arange(skipped + 1.0, len(hidden) + 1)[:, None]
    return {
        PoolingMode.MAX: kept.max(0).values,
        PoolingMode.MEAN: kept.mean(0),
        PoolingMode.MEAN_SQRT: kept.sum(0) / len(kept) ** 0.5,
        PoolingMode.WEIGHTED_MEAN: (kept * weights).sum(0) / weights.sum(),
        PoolingMode.LAST: kept[-1],
    }[mode]


@pytest.mark.parametrize("skips", [False, True], ids=["all tokens", "without prompts"])
@pytest.mark.parametrize("modes", MANY_MODES, ids=lambda modes: "+".join(mode.value for mode in modes))
@pytest.mark.parametrize("width", [33, 64])
def test_pool_modes(width: int, modes: tuple[PoolingMode, ...], skips: bool) -> None:
    """The last sequence is nothing but prompt, and the one before has one token beside it."""
    lengths, skipped = (1, 5, 130, 257, 3, 2), [0, 2, 0, 129, 2, 2] if skips else [0] * 6
    hidden = rand(sum(lengths), width) - 3  # so that a zero where nothing is would be the largest
    rows = [
        torch.cat([pooled(part, mode, skip) for mode in modes])
        for part, skip in zip(hidden.split(list(lengths)), skipped, strict=True)
    ]
    pool_from = torch.tensor(skipped, dtype=torch.int32) if skips else None
    for ops in (ragged, TORCH):
        assert_close(ops.pool_modes(hidden, offsets(lengths), len(lengths), modes, pool_from), torch.stack(rows))


@pytest.mark.parametrize("modes", MANY_MODES[-2:], ids=["in order", "backwards"])
def test_pool_modes_of_a_padded_batch(modes: tuple[PoolingMode, ...]) -> None:
    hidden = rand(16, 24)
    hidden[7:] = 0.0  # padding
    cu_seqlens = torch.tensor([0, 3, 7, 16, 16, 16], dtype=torch.int32)
    pool_from = torch.tensor([2, 0, 0, 0], dtype=torch.int32)
    out = ragged.pool_modes(hidden, cu_seqlens, 4, modes, pool_from)
    assert torch.isfinite(out).all()
    assert_close(out[:2], TORCH.pool_modes(hidden[:7], cu_seqlens[:3], 2, modes, pool_from[:2]))


def test_pool_modes_rounds_in_float32() -> None:
    """In float16, 2048 + 1 is 2048."""
    hidden = torch.tensor([[2048.0]] + [[1.0]] * 255).half()
    out = ragged.pool_modes(hidden, offsets((256,)), 1, (PoolingMode.MEAN, PoolingMode.MEAN_SQRT), None)
    assert out.tolist() == [[2303 / 256, 2303 / 16]]


@pytest.mark.parametrize("width", [33, 64])
def test_pool_spans(width: int) -> None:
    hidden = rand(300, width)
    bounds = [(0, 1), (1, 1), (2, 299), (299, 300), (300, 300), (40, 170), (0, 300)]
    starts, stops = torch.tensor(bounds, dtype=torch.int32).T.contiguous()
    empty = torch.zeros(width)
    expected = torch.stack([hidden[start:stop].mean(0) if stop > start else empty for start, stop in bounds])
    for ops in (ragged, TORCH):
        assert_close(ops.pool_spans(hidden, starts, stops), expected)


@pytest.mark.parametrize("width", [33, 64])
def test_scale(width: int) -> None:
    x, wanted = rand(6, width), [0, 1, -1, -7, -width, 1]
    x[5] = 0.0
    rows = []
    for row, how in zip(x, wanted, strict=True):
        counted = row if how == 1 else row[: -how or None]
        rows.append(row / counted.norm().clamp_min(1e-12) if how else row)
    for ops in (ragged, TORCH):
        assert_close(ops.scale(x.clone(), torch.tensor(wanted, dtype=torch.int32)), torch.stack(rows))


@pytest.mark.parametrize("width", [1, 7, 8, 33, 384])
def test_tanh_codes(width: int) -> None:
    x = rand(5, width) * torch.tensor([0.001, 0.1, 1.0, 3.0, 100.0])[:, None]
    expected = np.rint(127 * np.tanh(x.double().numpy())).astype(np.int8)
    for ops in (codes, TORCH):
        made = ops.tanh_codes(x)
        assert made.dtype is torch.int8
        assert made.numpy().tolist() == expected.tolist()


def test_tanh_codes_at_the_ends() -> None:
    x = torch.tensor([[0.0, -0.0, -0.001, 0.004, 20.0, -20.0, float("inf"), float("-inf")]])
    for ops in (codes, TORCH):
        assert ops.tanh_codes(x).tolist() == [[0, 0, 0, 1, 127, -127, 127, -127]]


@pytest.mark.parametrize("width", [1, 7, 33, 384])
def test_range_codes(width: int) -> None:
    x, lows = rand(6, width), rand(2, width) - 1.5
    steps = torch.rand(2, width) / 50 + 0.005
    scalings, normalize = (torch.tensor(values, dtype=torch.int32) for values in ([0, -7], [0, -7, 0, -7, 1, 0]))
    which = [0, 1, 0, 1, 0, 0]
    expected = np.clip(np.floor((x - lows[which]).numpy() / steps[which].numpy()), 0, 255) - 128
    for ops in (codes, TORCH):
        made = ops.range_codes(x, normalize, scalings, lows, steps)
        assert made.dtype is torch.int8
        assert made.tolist() == expected.tolist()


@pytest.mark.parametrize("or_zero", [True, False])
@pytest.mark.parametrize("width", [1, 7, 8, 33, 384])
def test_sign_bits(width: int, or_zero: bool) -> None:
    x = rand(5, width)
    x[:, ::3], x[1, :] = 0.0, -0.0
    expected = np.packbits((x >= 0 if or_zero else x > 0).numpy(), axis=-1)
    for ops in (codes, TORCH):
        made = ops.sign_bits(x, or_zero=or_zero)
        assert made.dtype is torch.uint8
        assert made.tolist() == expected.tolist()


def test_pool_of_zeros_is_zero() -> None:
    out = ragged.pool(torch.zeros(4, 8), offsets((4,)), torch.ones(1, dtype=torch.int32), PoolingMode.MEAN)
    assert torch.equal(out, torch.zeros(1, 8))


@pytest.mark.parametrize("tokens", [1, 16, 17, 37])
@pytest.mark.parametrize("tiling", [Tiling(16, 16, 32, 1, 2, 2), Tiling(32, 32, 64, 1, 2, 2)])
def test_linear(tokens: int, tiling: Tiling) -> None:
    x, weight = rand(tokens, 192), rand(96, 192)
    assert_close(gemm.linear(x, weight, tiling), x @ weight.T)
    bias = rand(96)
    assert_close(gemm.linear(x, weight, tiling, bias), x @ weight.T + bias)


@pytest.mark.parametrize("tokens", [1, 16, 19])
@pytest.mark.parametrize("splits", [2, 3])
def test_split_linear_and_sum_rms_norm(tokens: int, splits: int) -> None:
    x, weight, residual, norm_weight = rand(tokens, 192), rand(48, 192), rand(tokens, 48), rand(48)
    parts = gemm.linear(x, weight, Tiling(16, 16, 32, splits, 2, 2))
    assert parts.shape == (splits, tokens, 48)
    assert parts.dtype is torch.float32
    depth = 192 // splits
    for index, part in enumerate(parts):
        inner = slice(index * depth, (index + 1) * depth)
        assert_close(part, x[:, inner] @ weight[:, inner].T)
    total = residual + x @ weight.T
    out = gemm.sum_rms_norm(parts, residual, norm_weight, EPS)
    assert_close(residual, total)
    assert_close(out, F.rms_norm(total, (48,), norm_weight, EPS))


@pytest.mark.parametrize("tokens", [1, 16, 19])
@pytest.mark.parametrize("kind", NONLINEARITIES, ids=lambda kind: kind.value)
def test_glu_for_few_tokens(tokens: int, kind: Nonlinearity) -> None:
    x, gate_up = rand(tokens, 128), rand(2 * 48, 128) / 8
    assert_close(gemm.glu(x, gate_up, Tiling(16, 16, 64, 1, 2, 2), kind), TORCH.glu(x, gate_up, kind))


@pytest.mark.parametrize("tiling", [fused_gemm.LARGE, fused_gemm.SMALL], ids=["large", "small"])
@pytest.mark.parametrize("tokens", [1, 129])
@pytest.mark.parametrize("kind", [Nonlinearity.SILU, Nonlinearity.GELU], ids=lambda kind: kind.value)
def test_glu_for_many_tokens(tokens: int, tiling: fused_gemm.FusedTiling, kind: Nonlinearity) -> None:
    x, gate_up = rand(tokens, 128), rand(2 * 256, 128) / 8
    assert_close(fused_gemm.glu(x, gate_up, tiling, kind), TORCH.glu(x, gate_up, kind))


def test_glu_for_more_row_tiles_than_one_group() -> None:
    tokens = 17 * 128 + 5
    x, gate_up = rand(tokens, 64), rand(2 * 128, 64) / 8
    actual = fused_gemm.glu(x, gate_up, fused_gemm.LARGE, Nonlinearity.SILU)
    assert_close(actual, TORCH.glu(x, gate_up, Nonlinearity.SILU))


def attention_by_sequence(
    qkv: torch.Tensor,
    lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    causal: bool,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """One dense call a sequence, key and value heads repeated."""
    left, right = window or (len(qkv), len(qkv))
    rows = []
    for part in qkv.split(list(lengths)):
        dims = [heads, kv_heads, kv_heads]
        q, k, v = (x.transpose(0, 1) for x in part.view(len(part), sum(dims), -1).split(dims, dim=1))
        k, v = (x.repeat_interleave(heads // kv_heads, dim=0) for x in (k, v))
        seen = torch.ones(len(part), len(part), dtype=torch.bool).triu(-left).tril(0 if causal else right)
        rows.append(F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(0, 1).flatten(1))
    return torch.cat(rows)


SHORT = (2, 33, 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("few", [True, False], ids=["few sequences", "many sequences"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (1, 1)])
def test_short_attention(
    monkeypatch: pytest.MonkeyPatch, few: bool, rotate: bool, causal: bool, heads: int, kv_heads: int
) -> None:
    lengths, head_dim = SHORT, 32
    monkeypatch.setattr(short_attention_module, "_FEW_PROGRAMS", len(lengths) * kv_heads + int(few))
    qkv = rand(sum(lengths), (heads + 2 * kv_heads) * head_dim)
    before, rotated = qkv.clone(), qkv.clone()
    extra = {}
    if rotate:
        norm_weights, cos_sin = 1.0 + rand(2, head_dim) / 4, rand(64, head_dim)
        places = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
        TORCH.qk_norm_rope(rotated, norm_weights, cos_sin, places, heads, kv_heads, EPS)
        extra = {"norm_weights": norm_weights, "cos_sin": cos_sin, "eps": EPS}
    actual = short_attention(
        qkv, offsets(lengths), max(lengths), heads, kv_heads, head_dim**-0.5, causal=causal, **extra
    )
    assert torch.equal(qkv, before)
    assert_close(actual, attention_by_sequence(rotated, lengths, heads, kv_heads, causal))


@pytest.mark.parametrize("few", [True, False], ids=["few sequences", "many sequences"])
@pytest.mark.parametrize("by_token", [False, True], ids=["by place", "by token"])
def test_short_attention_turns_without_a_norm(monkeypatch: pytest.MonkeyPatch, by_token: bool, few: bool) -> None:
    lengths, head_dim = SHORT, 32
    monkeypatch.setattr(short_attention_module, "_FEW_PROGRAMS", len(lengths) * 2 + int(few))
    qkv = rand(sum(lengths), 8 * head_dim)
    tokens = torch.arange(sum(lengths), dtype=torch.int32)
    places = tokens if by_token else torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
    cos_sin, rotated = rand(64, head_dim), qkv.clone()
    TORCH.qk_norm_rope(rotated, None, cos_sin, places, 4, 2, EPS)
    actual = short_attention(
        qkv, offsets(lengths), max(lengths), 4, 2, 0.3, causal=False, cos_sin=cos_sin, by_token=by_token
    )
    assert_close(actual, attention_by_sequence(rotated, lengths, 4, 2, causal=False, scale=0.3))


@pytest.mark.parametrize("causal", [True, False])
def test_short_attention_at_its_longest(causal: bool) -> None:
    lengths = (128, 127)
    qkv = rand(sum(lengths), 3 * 32)
    actual = short_attention(qkv, offsets(lengths), 128, 1, 1, 32**-0.5, causal=causal)
    assert_close(actual, attention_by_sequence(qkv, lengths, 1, 1, causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [(0, 0), (3, 1), (64, 64)], ids=str)
def test_short_attention_through_a_window(causal: bool, window: tuple[int, int]) -> None:
    lengths = (33, 5, 1)
    qkv = rand(sum(lengths), 4 * 32)
    actual = short_attention(qkv, offsets(lengths), 33, 2, 1, 32**-0.5, causal=causal, window=window)
    assert_close(actual, attention_by_sequence(qkv, lengths, 2, 1, causal, window))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 1), (1, 1)])
def test_stream_attention(causal: bool, heads: int, kv_heads: int) -> None:
    lengths = (1, 63, 64, 65, 130, 2)
    qkv = rand(sum(lengths), (heads + 2 * kv_heads) * 32)
    before = qkv.clone()
    actual = stream_attention(qkv, offsets(lengths), 130, heads, kv_heads, 32**-0.5, causal=causal)
    assert torch.equal(qkv, before)
    assert_close(actual, attention_by_sequence(qkv, lengths, heads, kv_heads, causal))


def test_stream_attention_scales_as_told() -> None:
    lengths = (65, 3)
    qkv = rand(68, 3 * 32)
    actual = stream_attention(qkv, offsets(lengths), 65, 1, 1, 0.3, causal=False)
    assert_close(actual, attention_by_sequence(qkv, lengths, 1, 1, causal=False, scale=0.3))


@pytest.fixture
def nan_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written is NaN."""
    monkeypatch.setattr(torch, "empty", lambda shape, **kwargs: torch.full(shape, torch.nan, **kwargs))


@pytest.mark.usefixtures("nan_memory")
def test_stream_attention_beside_padding() -> None:
    """A padding sequence longer than any real one, and empty ones after it."""
    lengths = (70, 3, 327, 0, 0)
    qkv = rand(400, 4 * 32)
    actual = stream_attention(qkv, offsets(lengths), 70, 2, 1, 32**-0.5, causal=False)
    assert_close(actual[:73], attention_by_sequence(qkv[:73], (70, 3), 2, 1, causal=False))
    assert torch.isfinite(actual).all()


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("few", [True, False], ids=["few sequences", "many sequences"])
def test_short_attention_beside_padding(monkeypatch: pytest.MonkeyPatch, few: bool) -> None:
    """A padding sequence longer than any real one, and empty ones after it."""
    lengths = (3, 45, 280, 0, 0)
    monkeypatch.setattr(short_attention_module, "_FEW_PROGRAMS", len(lengths) + int(few))
    qkv = rand(328, 4 * 32)
    actual = short_attention(qkv, offsets(lengths), 45, 2, 1, 32**-0.5, causal=False)
    assert_close(actual[:48], attention_by_sequence(qkv[:48], (3, 45), 2, 1, causal=False))
    assert torch.isfinite(actual).all()


def test_rows_that_were_not_written_are_cleared() -> None:
    """The second of three sequences holds rows 70 to 194, of which 70 were written."""
    out = rand(200, 300)
    expected = torch.cat([out[:140], torch.zeros(55, 300), out[195:]])
    padding.clear_beyond(out, offsets((70, 125, 5)), 70)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("attend", [short_attention, stream_attention], ids=lambda attend: attend.__name__)
def test_what_lies_behind_a_sequence_is_nothing_to_it(attend: Callable[..., torch.Tensor], causal: bool) -> None:
    """Not even NaN, be it of a batch mate or of memory that nobody wrote."""
    lengths = (5, 40, 64, 70)
    alone = [rand(length, 4 * 32) for length in lengths]
    for index, length in enumerate(lengths):
        qkv = torch.cat([torch.full((80, 4 * 32), float("nan")), alone[index], torch.full((80, 4 * 32), float("nan"))])
        actual = attend(qkv, offsets((80, length, 80, 0)), 80, 2, 1, 32**-0.5, causal=causal)
        expected = attention_by_sequence(alone[index], (length,), 2, 1, causal)
        assert_close(actual[80 : 80 + length], expected)


def test_short_attention_does_not_leave_the_table_for_padding() -> None:
    table = torch.full((128, 32), float("nan"))
    table[:40] = 1.0  # a model of 40 positions; what follows it is not ours to read
    offsets = torch.tensor([0, 3, 64], dtype=torch.int32)
    out = short_attention(
        torch.randn(64, 96),
        offsets,
        64,
        1,
        1,
        1.0,
        causal=False,
        norm_weights=torch.ones(2, 32),
        cos_sin=table[:40],
        eps=1e-6,
    )
    assert torch.isfinite(out).all()
