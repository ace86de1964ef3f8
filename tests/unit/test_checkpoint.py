"""Checkpoint folders written on the spot: what sentence-transformers would make of them is what must come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rose_backend.config import Activation, DenseConfig, HeadConfig, PoolingMode
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint import read_checkpoint

OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}
CONFIG = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "max_position_embeddings": 512}


class Folder:
    """A checkpoint folder in the making; files are given as JSON values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("config.json", CONFIG)

    def write(self, name: str, values: Any) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(values if isinstance(values, str) else json.dumps(values))

    def modules(self, *kinds: str, old: bool = False) -> None:
        paths = ["" if index == 0 else f"{index}_{kind}" for index, kind in enumerate(kinds)]
        entries = [
            {"idx": index, "name": str(index), "path": path, "type": OLD + kind if old else NEW.get(kind, OLD + kind)}
            for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ]
        self.write("modules.json", entries)

    def pooling(self, values: Any, *others: str) -> None:
        self.modules("Transformer", "Pooling", *others)
        self.write("1_Pooling/config.json", values)

    def dense(self, **values: Any) -> None:
        self.pooling({"pooling_mode": "mean"}, "Dense")
        self.write("2_Dense/config.json", {"in_features": 8, "out_features": 4, **values})

    def refusal(self) -> str:
        with pytest.raises(CheckpointError) as refusal:
            read_checkpoint(self.path)
        return str(refusal.value)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_minilm(minilm: Path) -> None:
    checkpoint = read_checkpoint(minilm)
    assert checkpoint.head == HeadConfig(PoolingMode.MEAN, normalize=True)
    assert (checkpoint.model_type, checkpoint.vocab_size, checkpoint.max_length) == ("bert", 30522, 256)
    assert (checkpoint.lower_case, dict(checkpoint.prompts), checkpoint.default_prompt_name) == (False, {}, None)


def test_without_modules_mean_and_no_normalize(folder: Folder) -> None:
    assert read_checkpoint(folder.path).head == HeadConfig(PoolingMode.MEAN, normalize=False)


@pytest.mark.parametrize("old", [True, False])
def test_old_and_new_type_strings(folder: Folder, old: bool) -> None:
    folder.modules("Transformer", "Pooling", "Normalize", old=old)
    folder.write("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    assert read_checkpoint(folder.path).head == HeadConfig(PoolingMode.CLS, normalize=True)


def test_without_a_normalize_module_nothing_is_normalized(folder: Folder) -> None:
    folder.pooling({"pooling_mode": "mean"})
    assert read_checkpoint(folder.path).head.normalize is False


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("kind", ["CNN", "LSTM", "WordWeights", "LayerNorm", "Router", "FlexibleQuantizer"])
def test_unknown_modules_are_refused_by_name(folder: Folder, kind: str, old: bool) -> None:
    folder.modules("Transformer", "Pooling", kind, old=old)
    folder.write("1_Pooling/config.json", {"pooling_mode": "mean"})
    assert repr(kind) in folder.refusal()


@pytest.mark.parametrize(
    "kinds",
    [
        ("Pooling", "Transformer"),
        ("Transformer", "Normalize", "Pooling"),
        ("Pooling",),
        ("Transformer", "Pooling", "Pooling"),
        ("Transformer", "Pooling", "Normalize", "Normalize"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer", "Dense", "Pooling"),
        ("Transformer",),
    ],
)
def test_modules_in_another_order_are_refused(folder: Folder, kinds: tuple[str, ...]) -> None:
    folder.modules(*kinds)
    assert "modules.json" in folder.refusal()


def test_a_transformer_in_its_own_folder(folder: Folder) -> None:
    (folder.path / "config.json").unlink()
    folder.write("0_Transformer/config.json", {**CONFIG, "vocab_size": 31})
    folder.write("0_Transformer/sentence_bert_config.json", {"max_seq_length": 77})
    folder.write("1_Pooling/config.json", {"pooling_mode_cls_token": True})
    kinds = ("Transformer", "Pooling")
    entries = [{"path": f"{index}_{kind}", "type": OLD + kind} for index, kind in enumerate(kinds)]
    folder.write("modules.json", entries)
    checkpoint = read_checkpoint(folder.path)
    assert checkpoint.folder == folder.path / "0_Transformer"
    assert (checkpoint.vocab_size, checkpoint.max_length, checkpoint.head.pooling) == (31, 77, PoolingMode.CLS)


@pytest.mark.parametrize("path", ["/etc", "../other", "1_Pooling/../.."])
def test_modules_outside_the_folder_are_refused(folder: Folder, path: str) -> None:
    folder.write("modules.json", [{"path": "", "type": OLD + "Transformer"}, {"path": path, "type": OLD + "Pooling"}])
    assert "outside" in folder.refusal()


def test_arguments_of_modules_are_refused(folder: Folder) -> None:
    folder.write("modules.json", [{"path": "", "type": OLD + "Transformer", "kwargs": ["task"]}])
    assert "['task']" in folder.refusal()


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, PoolingMode.MEAN),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, PoolingMode.CLS),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, PoolingMode.LAST),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": False}, PoolingMode.MEAN),  # all false
        ({"word_embedding_dimension": 8}, PoolingMode.MEAN),
        ({"pooling_mode": "mean"}, PoolingMode.MEAN),
        ({"pooling_mode": "cls", "embedding_dimension": 8}, PoolingMode.CLS),
        ({"pooling_mode": "lasttoken"}, PoolingMode.LAST),
        ({"pooling_mode": ["lasttoken"]}, PoolingMode.LAST),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, PoolingMode.CLS),  # the new key wins
        ({"pooling_mode_max_tokens": True}, PoolingMode.MAX),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, PoolingMode.MEAN_SQRT),
        ({"pooling_mode_weightedmean_tokens": True}, PoolingMode.WEIGHTED_MEAN),
        ({"pooling_mode": "weightedmean"}, PoolingMode.WEIGHTED_MEAN),
    ],
)
def test_pooling(folder: Folder, values: dict[str, Any], mode: PoolingMode) -> None:
    folder.pooling(values)
    assert read_checkpoint(folder.path).head == HeadConfig(mode, normalize=False)


@pytest.mark.parametrize(
    ("values", "modes"),
    [
        (
            {  # old flags, whatever their order in the file
                "pooling_mode_lasttoken": True,
                "pooling_mode_mean_tokens": True,
                "pooling_mode_cls_token": True,
            },
            (PoolingMode.CLS, PoolingMode.MEAN, PoolingMode.LAST),
        ),
        ({"pooling_mode": ["mean", "cls"]}, (PoolingMode.MEAN, PoolingMode.CLS)),
        ({"pooling_mode": ["weightedmean", "max"]}, (PoolingMode.WEIGHTED_MEAN, PoolingMode.MAX)),
    ],
)
def test_several_ways_of_pooling(folder: Folder, values: dict[str, Any], modes: tuple[PoolingMode, ...]) -> None:
    folder.pooling(values)
    checkpoint = read_checkpoint(folder.path)
    assert checkpoint.head.modes == modes
    assert checkpoint.matryoshka.dim == 8 * len(modes)


@pytest.mark.parametrize(("values", "expected"), [({}, True), ({"include_prompt": False}, False)])
def test_include_prompt(folder: Folder, values: dict[str, Any], expected: bool) -> None:
    folder.pooling({"pooling_mode": "mean", **values})
    assert read_checkpoint(folder.path).head.include_prompt is expected


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, PoolingMode.LAST),
        ({"architectures": ["Qwen3ForCausalLM"], "is_causal": False}, PoolingMode.MEAN),
        ({"architectures": ["Qwen3Model"]}, PoolingMode.MEAN),
        ({"architectures": None}, PoolingMode.MEAN),
        ({"model_type": "llama_bidirec", "pooling": "avg"}, PoolingMode.MEAN),
    ],
)
def test_pooling_without_modules(folder: Folder, config: dict[str, Any], pooling: PoolingMode) -> None:
    folder.write("config.json", {**CONFIG, **config})
    assert read_checkpoint(folder.path).head == HeadConfig(pooling, normalize=False)


def test_another_pooling_of_the_config_file_is_refused(folder: Folder) -> None:
    folder.write("config.json", {**CONFIG, "pooling": "last"})
    assert "config.json: pooling 'last' is not served" in folder.refusal()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"pooling_mode": "splade"}, "splade"),
        ({"pooling_mode": ["mean", "first"]}, "['mean', 'first']"),
        ({"pooling_mode": ["mean", "mean"]}, "twice"),
        ({"pooling_mode": []}, "[]"),
        ({"pooling_mode": None}, "None"),
        ({"pooling_mode": "mean", "include_prompt": "no"}, "include_prompt"),
        ({"pooling_mode_cls_token": 1}, "pooling_mode_cls_token"),
        ({"pooling_mode": "mean", "pooling_layer": 3}, "pooling_layer"),
    ],
)
def test_pooling_that_is_not_served_is_refused_by_name(folder: Folder, values: dict[str, Any], named: str) -> None:
    folder.pooling(values)
    refusal = folder.refusal()
    assert named in refusal
    assert str(Path("1_Pooling/config.json")) in refusal


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, {}),
        ({"activation_function": "torch.nn.Tanh"}, {}),
        ({"activation_function": "torch.nn.modules.linear.Identity"}, {"activation": Activation.IDENTITY}),
        ({"activation_function": "torch.nn.modules.activation.GELU"}, {"activation": Activation.GELU}),
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, {"activation": Activation.RELU}),
        ({"activation_function": "torch.nn.modules.activation.SiLU"}, {"activation": Activation.SILU}),
        ({"activation_function": "torch.nn.modules.activation.Sigmoid"}, {"activation": Activation.SIGMOID}),
        ({"bias": False, "use_residual": True}, {"bias": False, "residual": True}),
        ({"module_input_name": "sentence_embedding", "module_output_name": None}, {}),
    ],
)
def test_dense(folder: Folder, values: dict[str, Any], expected: dict[str, Any]) -> None:
    folder.dense(**values)
    checkpoint = read_checkpoint(folder.path)
    assert checkpoint.head.dense == (DenseConfig(folder.path / "2_Dense", 8, 4, **expected),)
    assert checkpoint.matryoshka.dim == 4


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softmax"}, "Softmax"),
        ({"activation_function": "os.system"}, "os.system"),
        ({"activation_function": "torch.nn.modules.activation.Identity"}, "Identity"),
        ({"activation_function": None}, "None"),
        ({"activation_function": ["torch.nn.Tanh"]}, "activation_function"),
        ({"in_features": None}, "in_features"),
        ({"out_features": 0}, "out_features"),
        ({"bias": 1}, "bias"),
        ({"use_residual": "yes"}, "use_residual"),
        ({"module_input_name": "token_embeddings"}, "token_embeddings"),
        ({"module_output_name": "other"}, "other"),
        ({"norm": True}, "'norm'"),
    ],
)
def test_dense_that_is_not_served_is_refused_by_name(folder: Folder, values: dict[str, Any], named: str) -> None:
    folder.dense(**values)
    refusal = folder.refusal()
    assert named in refusal
    assert str(Path("2_Dense/config.json")) in refusal


@pytest.mark.parametrize("values", [{"module_input_name": "token_embeddings"}, {"p": 1}], ids=str)
def test_normalize_that_is_not_served_is_refused_by_name(folder: Folder, values: dict[str, Any]) -> None:
    folder.pooling({"pooling_mode": "mean"}, "Normalize")
    assert read_checkpoint(folder.path).head.normalize  # its file may be missing
    folder.write("2_Normalize/config.json", {"module_input_name": "sentence_embedding"})
    assert read_checkpoint(folder.path).head.normalize
    folder.write("2_Normalize/config.json", values)
    assert str(Path("2_Normalize/config.json")) in folder.refusal()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"transformer_task": "fill-mask"}, "fill-mask"),
        ({"module_output_name": "scores"}, "scores"),
        ({"modality_config": {"image": {"method": "forward"}}}, "image"),
        ({"modality_config": {"text": {"method": "get_text_features"}}}, "get_text_features"),
        ({"processing_kwargs": {"text": {"padding": "max_length"}}}, "padding"),
        ({"query_expansion": {"length": 32}}, "query_expansion"),
        ({"query_length": 32}, "query_length"),
        ({"model_args": {"num_labels": 2}}, "num_labels"),
        ({"tokenizer_args": {"truncation_side": "left"}}, "truncation_side"),
        ({"config_kwargs": {"is_causal": False}}, "is_causal"),
        ({"tokenizer_name_or_path": "other"}, "other"),
        ({"model_kwargs": ["attn_implementation"]}, "model_kwargs"),
        ({"do_lower_case": "yes"}, "do_lower_case"),
        ({"pooler": True}, "'pooler'"),
    ],
)
def test_encoders_that_are_not_served_are_refused_by_name(folder: Folder, values: dict[str, Any], named: str) -> None:
    folder.write("sentence_bert_config.json", values)
    refusal = folder.refusal()
    assert named in refusal
    assert "sentence_bert_config.json" in refusal


def test_what_todays_release_writes_is_served(folder: Folder) -> None:
    folder.write(
        "sentence_bert_config.json",
        {
            "max_seq_length": 100,
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
            "unpad_inputs": False,
            "model_args": {"attn_implementation": "sdpa", "torch_dtype": "bfloat16"},
        },
    )
    assert read_checkpoint(folder.path).max_length == 100


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model_type": "SparseEncoder"}, "SparseEncoder"),
        ({"similarity_fn_name": "maxsim"}, "maxsim"),
        ({"prompts": ["query: "]}, "prompts"),
        ({"prompts": {"query": 5}}, "prompts"),
        ({"default_prompt_name": ["query"]}, "default_prompt_name"),
        ({"query_prefix": "[Q] "}, "query_prefix"),
        ({"truncate_dim": 9}, "truncate_dim"),
        ({"truncate_dim": "4"}, "truncate_dim"),
    ],
)
def test_library_settings_that_are_not_served_are_refused_by_name(
    folder: Folder, values: dict[str, Any], named: str
) -> None:
    folder.write("config_sentence_transformers.json", values)
    refusal = folder.refusal()
    assert named in refusal
    assert "config_sentence_transformers.json" in refusal


@pytest.mark.parametrize(("name", "expected"), [(None, "cosine"), ("cosine", "cosine"), ("dot", "dot")])
def test_similarity(folder: Folder, name: str | None, expected: str) -> None:
    folder.write("config_sentence_transformers.json", {"similarity_fn_name": name, "prompts": {"query": None}})
    checkpoint = read_checkpoint(folder.path)
    assert (checkpoint.similarity, dict(checkpoint.prompts)) == (expected, {"query": ""})


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        ({"model_type": "xlm-roberta", "pad_token_id": 1}, {}, 510),
        ({"model_type": "roberta"}, {}, 510),
        ({"model_type": "camembert", "pad_token_id": 0}, {}, 511),
        ({"model_type": "xlm-roberta", "pad_token_id": 1}, {"max_seq_length": 512}, 510),
        ({"model_type": "xlm-roberta", "pad_token_id": 1}, {"max_seq_length": 256}, 256),
        ({"model_type": "bert", "pad_token_id": 1}, {}, 512),
        ({"tokenizer_args": {}}, {"max_seq_length": 256, "tokenizer_args": {"model_max_length": 99}}, 99),
    ],
)
def test_positions_that_start_late(
    folder: Folder, config: dict[str, Any], files: dict[str, Any], expected: int
) -> None:
    folder.write("config.json", {**CONFIG, **config})
    folder.write("sentence_bert_config.json", files)
    assert read_checkpoint(folder.path).max_length == expected


def test_a_padding_token_beyond_the_positions_is_refused(folder: Folder) -> None:
    folder.write("config.json", {**CONFIG, "model_type": "roberta", "pad_token_id": 511})
    assert "pad_token_id" in folder.refusal()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 512),
        ({"sentence_bert_config.json": {"max_seq_length": 128}}, 128),
        ({"sentence_bert_config.json": {"max_seq_length": 4096}}, 512),
        ({"sentence_roberta_config.json": {"max_seq_length": 100}}, 100),
        ({"sentence_distilbert_config.json": {"max_seq_length": 101}}, 101),
        ({"sentence_camembert_config.json": {"max_seq_length": 102}}, 102),
        ({"sentence_albert_config.json": {"max_seq_length": 103}}, 103),
        ({"sentence_xlm-roberta_config.json": {"max_seq_length": 104}}, 104),
        ({"sentence_xlnet_config.json": {"max_seq_length": 105}}, 105),
        ({"tokenizer_config.json": {"model_max_length": 200}}, 200),
        ({"tokenizer_config.json": {"model_max_length": int(1e30)}}, 512),
        ({"tokenizer_config.json": {"model_max_length": 1e30}}, 512),
        ({"tokenizer_config.json": {}}, 512),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 128},
                "tokenizer_config.json": {"model_max_length": 64},
            },
            128,
        ),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": None, "do_lower_case": False},
                "tokenizer_config.json": {"model_max_length": 64},
            },
            64,
        ),
    ],
)
def test_max_length(folder: Folder, files: dict[str, Any], expected: int) -> None:
    for name, values in files.items():
        folder.write(name, values)
    assert read_checkpoint(folder.path).max_length == expected


def test_prompts(folder: Folder) -> None:
    values = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    folder.write("config_sentence_transformers.json", values)
    checkpoint = read_checkpoint(folder.path)
    assert dict(checkpoint.prompts) == {"query": "q: ", "document": ""}
    assert checkpoint.default_prompt_name == "query"


def test_a_default_prompt_that_is_not_there_is_refused(folder: Folder) -> None:
    values = {"prompts": {"query": "q: "}, "default_prompt_name": "passage"}
    folder.write("config_sentence_transformers.json", values)
    refusal = folder.refusal()
    assert "'passage'" in refusal
    assert "['query']" in refusal


@pytest.mark.parametrize("lower", [True, False])
def test_do_lower_case(folder: Folder, lower: bool) -> None:
    folder.write("sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": lower})
    assert read_checkpoint(folder.path).lower_case is lower


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere is not a folder"):
        read_checkpoint(tmp_path / "nowhere")


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        read_checkpoint(tmp_path)


def test_a_missing_pooling_config_is_named(folder: Folder) -> None:
    folder.modules("Transformer", "Pooling")
    assert str(Path("1_Pooling/config.json")) in folder.refusal()


@pytest.mark.parametrize(
    "name", ["config.json", "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("text", ["{", "[1]", "null", ""])
def test_bad_json_is_named(folder: Folder, name: str, text: str) -> None:
    folder.write(name, text)
    assert name in folder.refusal()


@pytest.mark.parametrize("text", ["[", "{}", "null", "[1]", '[{"idx": 0}]'])
def test_bad_modules_json_is_named(folder: Folder, text: str) -> None:
    folder.write("modules.json", text)
    assert "modules.json" in folder.refusal()


def test_files_that_were_read(folder: Folder) -> None:
    folder.dense()
    folder.write("config_sentence_transformers.json", {})
    names = [str(path.relative_to(folder.path)) for path in read_checkpoint(folder.path).files]
    assert names == [
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "config.json",
        "config_sentence_transformers.json",
    ]


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, "many", -1])
def test_sizes_that_are_no_sizes_are_named(folder: Folder, key: str, value: Any) -> None:
    folder.write("config.json", {**CONFIG, key: value})
    assert key in folder.refusal()


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 1}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514}, 512),  # the usual pad is 1
        ({"model_type": "camembert", "max_position_embeddings": 514, "pad_token_id": 0}, 513),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192),
        ({"model_type": "nomic_bert", "n_positions": 8192, "max_trained_positions": 2048}, 8192),
        ({"model_type": "nomic_bert", "max_position_embeddings": 2048}, 2048),
        (
            {
                "model_type": "nomic_bert",
                "max_position_embeddings": 2048,
                "rope_parameters": {"rope_type": "dynamic", "factor": 4.0},
            },
            8192,
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_lengths_by_family(folder: Folder, config: dict[str, Any], length: int) -> None:
    """Without `max_seq_length`; with a larger one too."""
    width = "n_embd" if "n_positions" in config else "hidden_size"
    folder.write("config.json", {"vocab_size": 30, width: 32, **config})
    assert read_checkpoint(folder.path).max_length == length
    folder.write("sentence_bert_config.json", {"max_seq_length": 100_000})
    assert read_checkpoint(folder.path).max_length == length


def test_no_positions_behind_the_pad(folder: Folder) -> None:
    folder.write("config.json", {"vocab_size": 30, "model_type": "roberta", "max_position_embeddings": 2})
    assert "max_position_embeddings 2 leaves no position behind pad_token_id 1" in folder.refusal()
