"""Pooling, projections and prompts, against sentence-transformers on files it wrote itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Dense
from tokenizers import Tokenizer, normalizers

from rose_backend.config import Activation, DenseConfig, HeadConfig, PoolingMode
from rose_backend.errors import CheckpointError
from rose_backend.heads import Head
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.options import RequestOptions
from tests.support.cases import HARBOUR, VOCAB_SIZE
from tests.support.checkpoints import copy_tokenizer, make_bert, write_json
from tests.support.library import HIDDEN, alone, edit_json, library, save_with_library
from tests.support.vectors import assert_close, largest_difference
from tests.unit.served import Served

_TEXTS = [HARBOUR, "tea", "", "stone " * 60, "[CLS] tea [SEP] pot", "caf\u00e9 TEA", "tea"]
_MODES = [mode.value for mode in PoolingMode]
_OLD = "sentence_transformers.models."


def _check(folder: Path, **options: Any) -> None:
    expected = alone(library(folder), _TEXTS, **options)
    assert_close(Served(read_checkpoint(folder)).embed(_TEXTS, **options), expected)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", [*_MODES, ["mean", "cls"], _MODES[::-1]], ids=str)
def test_pooling(tmp_path: Path, minilm: Path, pooling: str | Sequence[str], normalize: bool) -> None:
    _check(save_with_library(tmp_path, minilm, pooling=pooling, normalize=normalize))


def test_old_flags_concatenate_in_their_own_order(tmp_path: Path, minilm: Path) -> None:
    folder = save_with_library(tmp_path, minilm)
    flags = {"lasttoken": True, "max_tokens": False, "mean_tokens": True, "cls_token": True}
    values = {"word_embedding_dimension": HIDDEN, **{f"pooling_mode_{key}": flag for key, flag in flags.items()}}
    write_json(folder / "1_Pooling" / "config.json", values)
    _check(folder)


@pytest.mark.parametrize("activation", Activation, ids=lambda activation: activation.value)
def test_projections(tmp_path: Path, minilm: Path, activation: Activation) -> None:
    kind = getattr(torch.nn, activation.value)
    dense = [Dense(HIDDEN, 48, activation_function=kind()), Dense(48, 20, bias=False, activation_function=kind())]
    folder = save_with_library(tmp_path, minilm, dense=dense, normalize=False)
    assert [module.activation for module in read_checkpoint(folder).head.dense] == [activation] * 2
    _check(folder)


@pytest.mark.parametrize("safetensors", [True, False])
def test_residual_projections_of_a_concatenation(tmp_path: Path, minilm: Path, safetensors: bool) -> None:
    dense = [Dense(2 * HIDDEN, 24, use_residual=True), Dense(24, 24, use_residual=True)]
    pooling = ["max", "weightedmean"]
    _check(save_with_library(tmp_path, minilm, pooling=pooling, dense=dense, safetensors=safetensors))


def test_a_missing_activation_is_tanh(tmp_path: Path, minilm: Path) -> None:
    identity = Dense(HIDDEN, 16, activation_function=torch.nn.Identity())
    folder = save_with_library(tmp_path, minilm, pooling="cls", dense=[identity], normalize=False)
    before = alone(library(folder), ["tea"])
    edit_json(folder / "2_Dense" / "config.json", activation_function=None)
    assert_close(alone(library(folder), ["tea"]), np.tanh(before))
    _check(folder)


@pytest.mark.parametrize("pooling", [*_MODES, ["cls", "mean", "lasttoken"]], ids=str)
@pytest.mark.slow
def test_prompts_that_are_not_pooled(tmp_path: Path, minilm: Path, pooling: str | Sequence[str]) -> None:
    folder = save_with_library(tmp_path, minilm, pooling=pooling, include_prompt=False, max_length=20)
    prompts = {"query": "harbour wall: ", "document": "", "joint": "harb", "long": "stone " * 30}
    edit_json(folder / "config_sentence_transformers.json", prompts=prompts, default_prompt_name="joint")
    served, model = Served(read_checkpoint(folder)), library(folder)
    texts = [*_TEXTS, "our wall"]  # "harb" + "our" is one token, "harb" alone two
    if pooling != "max":  # here the library divides infinity by itself
        texts.append("our")  # nothing is left to pool
    for name in prompts:
        assert_close(served.embed(texts, prompt_name=name), alone(model, texts, prompt_name=name))
    assert_close(served.embed(texts), alone(model, texts))
    assert_close(served.embed(texts, prompt="tea: "), alone(model, texts, prompt="tea: "))
    if pooling == "mean":
        pooled = alone(library(folder), texts, prompt_name="query")
        edit_json(folder / "1_Pooling" / "config.json", include_prompt=True)
        assert largest_difference(pooled, alone(library(folder), texts, prompt_name="query")) > 1e-2


def test_prompted_and_bare_requests_share_a_batch(tmp_path: Path, minilm: Path) -> None:
    folder = save_with_library(tmp_path, minilm, include_prompt=False)
    served, model = Served(read_checkpoint(folder)), library(folder)
    ways: list[dict[str, Any]] = [{"prompt": "harbour wall: "}, {}, {"prompt": "tea "}, {"prompt": ""}]
    together = served.embed_together([(_TEXTS, RequestOptions(**way)) for way in ways])
    for vectors, way in zip(together, ways, strict=True):
        assert_close(vectors, alone(model, _TEXTS, **way))


def test_what_is_cut_off_a_prompt_is_not_left_out_again(tmp_path: Path, minilm: Path) -> None:
    """Cut on the left, `harbour wall: ` + 20 words has lost the prompt: every word left is pooled, as without one."""
    folder = save_with_library(tmp_path, minilm, include_prompt=False, max_length=12)
    served = Served(read_checkpoint(folder))
    text = " ".join(f"stone {word}" for word in ("tea", "pot", "rope", "river", "oak"))
    ids = served.embed([text], prompt="harbour ", truncation_direction="left")
    model = library(folder)
    features = model.tokenizer([text], return_tensors="pt")
    with torch.inference_mode():
        hidden = model[0](dict(features))["token_embeddings"][0]
    assert len(hidden) == 12  # [CLS], ten words, [SEP]: with the prompt there is one word too many
    assert_close(ids[0], torch.nn.functional.normalize(hidden[1:].mean(0), dim=0).numpy())


def test_the_form_of_old_releases(tmp_path: Path, minilm: Path) -> None:
    """Everything of the transformer in a folder of its own, old type strings, old flags."""
    encoder = tmp_path / "0_Transformer"
    make_bert(encoder, vocab_size=VOCAB_SIZE)
    copy_tokenizer(minilm, encoder)
    write_json(encoder / "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})
    write_json(
        tmp_path / "1_Pooling" / "config.json",
        {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": True},
    )
    dense = Dense(HIDDEN, 24)
    (tmp_path / "2_Dense").mkdir()
    dense.save(str(tmp_path / "2_Dense"), safe_serialization=False)
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    entries = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}", "type": _OLD + kind}
        for index, kind in enumerate(kinds)
    ]
    (tmp_path / "3_Normalize").mkdir()
    write_json(tmp_path / "modules.json", entries)
    _check(tmp_path)


@pytest.mark.parametrize("own", ["none", "sequence", "other"])
def test_lower_casing(tmp_path: Path, minilm: Path, own: str) -> None:
    """A tokenizer that lower-cases by itself keeps its order: here `TEA` is replaced before."""
    folder = save_with_library(tmp_path, minilm)
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    replace = normalizers.Replace("TEA", "pot")
    steps = {"none": None, "sequence": [replace, normalizers.Lowercase()], "other": [replace]}[own]
    tokenizer.normalizer = None if steps is None else normalizers.Sequence(steps)
    tokenizer.save(path)
    # Under the name of BERT's own tokenizer, transformers would put the normalizer it knows in place of the file's.
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk", "mask")}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    _check(folder)


def test_input_types_with_a_default_prompt(tmp_path: Path, minilm: Path) -> None:
    folder = save_with_library(tmp_path, minilm)
    prompts = {"sts": "stone ", "query": None, "document": "pot "}
    for query in (None, "tea "):
        values = {"prompts": {**prompts, "query": query}, "default_prompt_name": "sts"}
        write_json(folder / "config_sentence_transformers.json", values)
        served, model = Served(read_checkpoint(folder)), library(folder)
        assert_close(served.embed(["rope"]), alone(model, ["rope"]))
        assert_close(served.embed(["rope"], input_type="query"), model.encode_query(["rope"]))
        assert_close(served.embed(["rope"], input_type="document"), model.encode_document(["rope"]))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.slow
def test_dimensions_share_a_batch(tmp_path: Path, minilm: Path, normalize: bool) -> None:
    dense = [Dense(HIDDEN, 48, activation_function=torch.nn.Identity())]
    folder = save_with_library(tmp_path, minilm, dense=dense, normalize=normalize)
    edit_json(folder / "config.json", matryoshka_dimensions=[8, 16, 48])
    served, model = Served(read_checkpoint(folder)), library(folder)
    ways: list[dict[str, Any]] = [
        {"dimensions": 8},
        {},
        {"dimensions": 16, "normalize": True},
        {"dimensions": 16, "normalize": False},
        {"dimensions": 48},
    ]
    together = served.embed_together([(_TEXTS, RequestOptions(**way)) for way in ways])
    for vectors, way in zip(together, ways, strict=True):
        unscaled = library(folder)
        if normalize:
            del unscaled[-1]
        scaled = way.get("normalize", normalize)
        expected = alone(unscaled, _TEXTS, truncate_dim=way.get("dimensions"), normalize_embeddings=scaled)
        assert_close(vectors, expected)
    assert [vectors.shape[1] for vectors in together] == [8, 48, 16, 16, 48]
    assert_close(together[1], alone(model, _TEXTS))


def test_a_checkpoint_that_comes_cut(tmp_path: Path, minilm: Path) -> None:
    folder = save_with_library(tmp_path, minilm, normalize=False)
    edit_json(folder / "config_sentence_transformers.json", truncate_dim=12)
    _check(folder)
    assert Served(read_checkpoint(folder)).embed(["tea"], dimensions=HIDDEN).shape == (1, HIDDEN)


def _head(folder: Path, **changes: Any) -> Head:
    dense = DenseConfig(folder, **{"in_features": 4, "out_features": 2, **changes})
    return Head(HeadConfig(dense=(dense,)), 4, torch.device("cpu"))


def test_projections_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        _head(tmp_path)
    Dense(4, 2).save(str(tmp_path))
    assert _head(tmp_path).dim == 2
    with pytest.raises(CheckpointError, match="in_features is 5, but what comes in has 4 elements"):
        _head(tmp_path, in_features=5)
    for change in ({"out_features": 3}, {"bias": False}, {"residual": True}):
        with pytest.raises(CheckpointError, match=r"model\.safetensors holds tensors .*linear\.weight.*expected"):
            _head(tmp_path, **change)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable file of tensors"):
        _head(tmp_path)


class _Planted:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run by a pickle",))


def test_pickles_run_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"linear.weight": torch.zeros(2, 4), "linear.bias": _Planted()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a readable file of tensors"):
        _head(tmp_path)
    assert "run by a pickle" not in capsys.readouterr().out
