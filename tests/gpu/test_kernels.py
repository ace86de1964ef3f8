"""The fused kernels on the card against the same steps in float32 torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from rose_backend.config import PoolingMode
from rose_backend.kernels.ops import Nonlinearity
from rose_backend.kernels.short_attention import short_attention
from rose_backend.kernels.torch_ops import TorchOps
from rose_backend.kernels.triton_ops import TritonOps

_DEVICE = torch.device("cuda:0")


def _close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    error = (actual.float() - expected.float()).norm() / expected.float().norm()
    assert error <= {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]


def _drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device=_DEVICE).to(dtype)


@pytest.fixture
def fused() -> TritonOps:
    torch.manual_seed(0)
    return TritonOps(_DEVICE, torch.bfloat16)


@pytest.mark.parametrize("tokens", [16, 32, 64, 128, 320, 1280, 2048])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products(fused: TritonOps, tokens: int, dtype: torch.dtype) -> None:
    x, wide = _drawn(tokens, 1024, dtype=dtype), _drawn(tokens, 3072, dtype=dtype)
    qkv, gate_up, down = (_drawn(*shape, dtype=dtype) * 0.02 for shape in ((4096, 1024), (6144, 1024), (1024, 3072)))
    residual, norm = _drawn(tokens, 1024, dtype=dtype), _drawn(1024, dtype=dtype)
    plain = TorchOps()
    _close(fused.linear(x, qkv), plain.linear(x.float(), qkv.float()), dtype)
    for kind in Nonlinearity:
        _close(fused.glu(x, gate_up, kind), plain.glu(x.float(), gate_up.float(), kind), dtype)
    expected_residual = residual.float()
    expected = plain.linear_add_rms_norm(wide.float(), down.float(), expected_residual, norm.float(), 1e-6)
    _close(fused.linear_add_rms_norm(wide, down, residual, norm, 1e-6), expected, dtype)
    _close(residual, expected_residual, dtype)


@pytest.mark.parametrize("tokens", [16, 64, 320, 1280])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_with_biases(fused: TritonOps, tokens: int, dtype: torch.dtype) -> None:
    x, weight, bias = (_drawn(*shape, dtype=dtype) for shape in ((tokens, 768), (2304, 768), (2304,)))
    weight *= 0.02
    plain = TorchOps()
    _close(fused.linear(x, weight, bias), plain.linear(x.float(), weight.float(), bias.float()), dtype)
    kind = Nonlinearity.GELU
    _close(fused.glu(x, weight, kind, bias), plain.glu(x.float(), weight.float(), kind, bias.float()), dtype)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_modernbert_steps(fused: TritonOps, dtype: torch.dtype, biased: bool) -> None:
    plain = TorchOps()
    x, weight, residual = (_drawn(*shape, dtype=dtype) for shape in ((77, 1152), (768, 1152), (77, 768)))
    weight *= 0.02
    norm, shift, bias = (_drawn(768, dtype=dtype) for _ in range(3))
    full = [tensor.float().clone() for tensor in (x, weight, residual, norm, shift)]  # it adds in place
    expected = plain.linear_add_layer_norm(*full, 1e-5, bias.float() if biased else None)
    actual = fused.linear_add_layer_norm(x, weight, residual, norm, shift, 1e-5, bias if biased else None)
    _close(actual, expected, dtype)
    _close(residual, full[2], dtype)
    words = _drawn(500, 768, dtype=dtype)
    ids = torch.randint(0, 500, (77,), dtype=torch.int32, device=_DEVICE)
    expected = plain.embed_layer_norm(ids, None, words.float(), None, norm.float(), shift.float(), 1e-5)
    _close(fused.embed_layer_norm(ids, None, words, None, norm, shift, 1e-5), expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gemma_steps(fused: TritonOps, dtype: torch.dtype) -> None:
    """Its norms' weights are float32 whatever the dtype."""
    plain = TorchOps()
    x, residual = _drawn(77, 768, dtype=dtype), _drawn(77, 768, dtype=dtype)
    inner, weight = (_drawn(768, dtype=torch.float32) + 1.0 for _ in range(2))
    added = residual.float().clone()  # it adds in place
    expected = plain.norm_add_rms_norm(x.float(), inner, added, weight, 1e-6)
    _close(fused.norm_add_rms_norm(x.clone(), inner, residual, weight, 1e-6), expected, dtype)
    _close(residual, added, dtype)


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(12, 12, 64), (14, 2, 64), (32, 8, 128), (3, 1, 256)])
def test_rotation(fused: TritonOps, heads: int, kv_heads: int, head_dim: int, normed: bool) -> None:
    qkv = _drawn(77, (heads + 2 * kv_heads) * head_dim, dtype=torch.bfloat16)
    weights = _drawn(2, head_dim, dtype=torch.float32) if normed else None
    angles = torch.rand(64, head_dim // 2, device=_DEVICE) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.randint(0, 64, (77,), dtype=torch.int32, device=_DEVICE)
    expected = qkv.float()
    TorchOps().qk_norm_rope(expected, weights, cos_sin, positions, heads, kv_heads, 1e-6)
    fused.qk_norm_rope(qkv, weights, cos_sin, positions, heads, kv_heads, 1e-6)
    _close(qkv, expected, torch.bfloat16)


@pytest.mark.parametrize("by_token", [False, True], ids=["by place", "by token"])
@pytest.mark.parametrize("sequences", [2, 40])
def test_short_attention_turns_without_a_norm(fused: TritonOps, sequences: int, by_token: bool) -> None:
    heads, head_dim, length = 12, 64, 100
    tokens = sequences * length
    qkv = _drawn(tokens, 3 * heads * head_dim, dtype=torch.bfloat16)
    angles = torch.rand(tokens if by_token else 8192, head_dim // 2, device=_DEVICE) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    offsets = torch.arange(sequences + 1, dtype=torch.int32, device=_DEVICE) * length
    rows = torch.arange(tokens, dtype=torch.int32, device=_DEVICE)
    turned = qkv.float()
    TorchOps().qk_norm_rope(turned, None, cos_sin, rows if by_token else rows % length, heads, heads, 0.0)
    q, k, v = turned.view(sequences, length, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.1).transpose(1, 2).flatten(2)
    actual = short_attention(qkv, offsets, length, heads, heads, 0.1, causal=False, cos_sin=cos_sin, by_token=by_token)
    _close(actual, expected.flatten(0, 1), torch.bfloat16)


@pytest.mark.parametrize("pad", [0, 1, 3])
def test_counted_positions(fused: TritonOps, pad: int) -> None:
    offsets = torch.tensor([0, 1, 3, 3000, 5120, 5120], dtype=torch.int32, device=_DEVICE)
    ids = torch.randint(0, 5, (5120,), dtype=torch.int32, device=_DEVICE)
    expected = TorchOps().counted_positions(ids, offsets, pad, 514)
    assert torch.equal(fused.counted_positions(ids, offsets, pad, 514), expected)


@pytest.mark.parametrize("width", [384, 768, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bert_steps(fused: TritonOps, width: int, dtype: torch.dtype) -> None:
    plain = TorchOps()
    x, residual = _drawn(77, width, dtype=dtype), _drawn(77, width, dtype=dtype)
    weight, bias = _drawn(width, dtype=dtype), _drawn(width, dtype=dtype)
    words, places = _drawn(500, width, dtype=dtype), _drawn(64, width, dtype=dtype)
    ids = torch.randint(0, 500, (77,), dtype=torch.int32, device=_DEVICE)
    positions = torch.randint(0, 64, (77,), dtype=torch.int32, device=_DEVICE)
    full = [tensor.float() for tensor in (x, residual, weight, bias, words, places)]
    up, wide_bias = _drawn(4 * width, width, dtype=dtype) * width**-0.5, _drawn(4 * width, dtype=dtype)
    expected = plain.linear_gelu(full[0], up.float(), wide_bias.float())
    _close(fused.linear_gelu(x, up, wide_bias), expected, dtype)
    _close(
        fused.add_layer_norm(x.clone(), residual, weight, bias, 1e-12),
        plain.add_layer_norm(full[0].clone(), full[1], full[2], full[3], 1e-12),
        dtype,
    )
    _close(
        fused.embed_layer_norm(ids, positions, words, places, weight, bias, 1e-12),
        plain.embed_layer_norm(ids, positions, full[4], full[5], full[2], full[3], 1e-12),
        dtype,
    )


@pytest.mark.parametrize("mode", [PoolingMode.MEAN, PoolingMode.CLS, PoolingMode.LAST])
def test_pooling_ignores_padding(fused: TritonOps, mode: PoolingMode) -> None:
    hidden = _drawn(640, 384, dtype=torch.bfloat16)
    hidden[600:] = float("nan")  # padding
    offsets = torch.tensor([0, 1, 130, 131, 600, 640, 640], dtype=torch.int32, device=_DEVICE)
    flags = torch.tensor([1, 0, 1, 1], dtype=torch.int32, device=_DEVICE)
    actual = fused.pool(hidden, offsets, flags, mode)
    expected = TorchOps().pool(hidden[:600].float(), offsets[:5], flags, mode)
    assert (actual - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("width", [384, 1000])
@pytest.mark.parametrize("skips", [True, False], ids=["without prompts", "all tokens"])
@pytest.mark.parametrize("modes", [*((mode,) for mode in PoolingMode), tuple(PoolingMode)], ids=str)
def test_pooling_in_several_ways(fused: TritonOps, modes: tuple[PoolingMode, ...], skips: bool, width: int) -> None:
    hidden = _drawn(640, width, dtype=torch.bfloat16)
    hidden[600:] = float("nan")  # padding
    offsets = torch.tensor([0, 1, 130, 131, 600, 640, 640], dtype=torch.int32, device=_DEVICE)
    pool_from = torch.tensor([1, 100, 0, 200], dtype=torch.int32, device=_DEVICE) if skips else None
    actual = fused.pool_modes(hidden, offsets, 4, modes, pool_from)
    expected = TorchOps().pool_modes(hidden[:600].float(), offsets[:5], 4, modes, pool_from)
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max().clamp_min(1.0)


@pytest.mark.parametrize("width", [384, 1000, 6 * 1024])
def test_scaling(fused: TritonOps, width: int) -> None:
    x = _drawn(5, width, dtype=torch.float32)
    wanted = torch.tensor([0, 1, -64, -1, -width], dtype=torch.int32, device=_DEVICE)
    expected = TorchOps().scale(x.clone(), wanted)
    assert (fused.scale(x, wanted) - expected).abs().max() <= 1e-5


def test_positions_stay_inside_the_table(fused: TritonOps) -> None:
    offsets = torch.tensor([0, 3, 5000, 5120], dtype=torch.int32, device=_DEVICE)
    assert torch.equal(fused.positions(offsets, 5120, 4990), TorchOps().positions(offsets, 5120, 4990))


def test_token_types(fused: TritonOps) -> None:
    """The padding is the last sequence of all, without a number of its own; or one among empty ones."""
    for offsets, begins in (([0, 1, 130, 2600, 2688], [0, 60, 2000]), ([0, 9, 16, 16, 16, 16], [3, 0, 0, 0])):
        cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=_DEVICE)
        type_from = torch.tensor(begins, dtype=torch.int32, device=_DEVICE)
        expected = torch.zeros(offsets[-1], dtype=torch.int32, device=_DEVICE)
        for start, stop, begin in zip(offsets, offsets[1:], begins, strict=False):
            expected[start + begin if begin else stop : stop] = 1
        assert torch.equal(fused.token_types(cu_seqlens, type_from, offsets[-1]), expected)
        assert torch.equal(TorchOps().token_types(cu_seqlens, type_from, offsets[-1]), expected)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("width", [30, 384, 1024])
def test_codes(fused: TritonOps, rows: int, width: int) -> None:
    x, plain = _drawn(rows, width, dtype=torch.float32), TorchOps()
    x[:, 3] = 0.0
    assert (fused.tanh_codes(x).int() - plain.tanh_codes(x).int()).abs().max() <= 1
    assert (fused.tanh_codes(x) != plain.tanh_codes(x)).float().mean() < 1e-3
    for or_zero in (True, False):
        assert torch.equal(fused.sign_bits(x, or_zero=or_zero), plain.sign_bits(x, or_zero=or_zero))
    scalings = torch.tensor([0, 1, -16], dtype=torch.int32, device=_DEVICE)
    normalize = scalings[torch.arange(rows, device=_DEVICE) % 3]
    lows, steps = _drawn(3, width, dtype=torch.float32) - 2, torch.rand(3, width, device=_DEVICE) / 50 + 0.005
    made, expected = (ops.range_codes(x, normalize, scalings, lows, steps) for ops in (fused, plain))
    assert torch.equal(made, expected)


@pytest.mark.parametrize("width", [384, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pooling_of_spans(fused: TritonOps, width: int, dtype: torch.dtype) -> None:
    hidden = _drawn(640, width, dtype=dtype)
    hidden[600:] = float("nan")  # padding
    bounds = [(0, 1), (1, 1), (2, 299), (299, 300), (600, 600), (40, 170), (0, 600)]
    starts, stops = torch.tensor(bounds, dtype=torch.int32, device=_DEVICE).T.contiguous()
    actual, expected = fused.pool_spans(hidden, starts, stops), TorchOps().pool_spans(hidden, starts, stops)
    assert (actual - expected).abs().max() <= 1e-5
