"""Which checkpoints are rerankers, what is made of their files, and what is refused: files alone, no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import CrossEncoder
from typer.testing import CliRunner

from rose_backend.config import Activation, PoolingMode, ScoreHead
from rose_backend.errors import CheckpointError
from rose_client.cli.main import app
from rose_ensemble.checkpoint import read_checkpoint
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.repository import Repository
from rose_ensemble.scoring import Scoring
from tests.support.checkpoints import SHAPE, write_json
from tests.support.library import edit_json
from tests.support.rerankers import make_bert_reranker, word_tokenizer

_ONE = {"id2label": {"0": "LABEL_0"}}
_QWEN = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}
_TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
_LOGIT_SCORE = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
_JUDGE = "Judge whether the Document meets the requirements <Instruct>: <Query>: <Document>: "


def _files(folder: Path, **config: Any) -> Path:
    values = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **_ONE, **config}
    write_json(folder / "config.json", {**SHAPE, **values})
    word_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def _scoring(folder: Path) -> Scoring:
    scoring = read_checkpoint(folder).scoring
    assert scoring is not None
    return scoring


def _refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refusal:
        read_checkpoint(folder)
    return str(refusal.value)


def _ending(folder: Path) -> None:
    """As Qwen3-Embedding's: `<|endoftext|>` behind every text."""
    values = json.loads((folder / "tokenizer.json").read_text())
    template = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    write_json(folder / "tokenizer.json", {**values, "post_processor": template})


def _logit_score(folder: Path, **values: Any) -> Path:
    entries = [{"path": "", "type": _TRANSFORMER}, {"path": "1_LogitScore", "type": _LOGIT_SCORE}]
    write_json(_files(folder, **_QWEN) / "modules.json", entries)
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 7, "false_token_id": 8, **values})
    (folder / "chat_template.jinja").write_text(_JUDGE)
    return folder


@pytest.mark.parametrize(
    ("config", "head", "pooling"),
    [
        ({}, ScoreHead.POOLER, PoolingMode.CLS),
        ({"architectures": ["RobertaForSequenceClassification"]}, ScoreHead.CLASSIFIER, PoolingMode.CLS),
        ({"architectures": ["XLMRobertaForSequenceClassification"]}, ScoreHead.CLASSIFIER, PoolingMode.CLS),
        ({"architectures": ["CamembertForSequenceClassification"]}, ScoreHead.CLASSIFIER, PoolingMode.CLS),
        ({"architectures": ["ModernBertForSequenceClassification"]}, ScoreHead.PREDICTION, PoolingMode.CLS),
        (
            {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean"},
            ScoreHead.PREDICTION,
            PoolingMode.MEAN,
        ),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, ScoreHead.SCORE, PoolingMode.LAST),
        (_QWEN, ScoreHead.TOKENS, PoolingMode.LAST),
    ],
)
def test_heads(tmp_path: Path, config: dict[str, Any], head: ScoreHead, pooling: PoolingMode) -> None:
    found = _scoring(_files(tmp_path, **config))
    assert (found.config.head, found.config.pooling) == (head, pooling)
    assert (found.template is not None) is (pooling is PoolingMode.LAST)


def test_answers_are_found_by_their_text(tmp_path: Path) -> None:
    words = word_tokenizer().get_vocab()
    config = _scoring(_files(tmp_path, **_QWEN)).config
    assert (config.token_ids, config.tied) == ((words["yes"], words["no"]), True)


def test_answers_that_a_module_names(tmp_path: Path) -> None:
    config = _scoring(_logit_score(tmp_path)).config
    assert (config.head, config.token_ids, config.activation) == (ScoreHead.TOKENS, (7, 8), Activation.SIGMOID)


@pytest.mark.parametrize("declared", ["SentenceTransformer", "CrossEncoder", None])
def test_a_language_model_whose_texts_end_in_a_token_embeds(tmp_path: Path, declared: str | None) -> None:
    """Unless a file says otherwise, and so does one whose texts do not."""
    folder = _files(tmp_path, **_QWEN)
    _ending(folder)
    if declared is not None:
        write_json(folder / "config_sentence_transformers.json", {"model_type": declared})
    assert (read_checkpoint(folder).scoring is not None) is (declared == "CrossEncoder")
    word_tokenizer().save(str(folder / "tokenizer.json"))
    assert (read_checkpoint(folder).scoring is not None) is (declared != "SentenceTransformer")


def test_a_pooling_module_makes_a_classifier_an_embedding_model(tmp_path: Path) -> None:
    entries = [
        {"path": "", "type": _TRANSFORMER},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    write_json(_files(tmp_path) / "modules.json", entries)
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
    assert read_checkpoint(tmp_path).scoring is None


_S, _T, _I = Activation.SIGMOID, Activation.TANH, Activation.IDENTITY


@pytest.mark.parametrize(
    ("own", "new", "old", "expected"),
    [
        (None, None, None, _S),
        (None, None, "torch.nn.modules.linear.Identity", _I),
        (None, None, "torch.nn.Identity", _I),
        (None, "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity", _T),
        ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh", None, _I),
        ("torch.nn.modules.activation.Sigmoid", None, "torch.nn.modules.linear.Identity", _S),
        (None, "null", "torch.nn.modules.linear.Identity", _S),
    ],
)
def test_precedence_of_activations(
    tmp_path: Path, minilm: Path, own: str | None, new: str | None, old: str | None, expected: Activation
) -> None:
    """Of its own file, `config.json`'s new key and its old one; the library is asked for the same."""
    folder = make_bert_reranker(tmp_path, minilm)
    if own is not None:
        entries = [{"idx": 0, "name": "0", "path": "", "type": _TRANSFORMER}]
        write_json(folder / "modules.json", entries)
        task = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
        text = {"text": {"method": "forward", "method_output_name": "logits"}}
        write_json(folder / "sentence_bert_config.json", {**task, "modality_config": text})
        values = {"model_type": "CrossEncoder", "activation_fn": own}
        write_json(folder / "config_sentence_transformers.json", values)
    if new is not None:
        section = {"version": "4.1.0", "activation_fn": None if new == "null" else new}
        edit_json(folder / "config.json", sentence_transformers=section)
    if old is not None:
        edit_json(folder / "config.json", sbert_ce_default_activation_function=old)
    assert _scoring(folder).config.activation is expected
    library = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    assert type(library.activation_fn).__name__ == expected.value


@pytest.mark.parametrize("strategy", ["OnlySecond", "OnlyFirst", "LongestFirst", None])
def test_truncation_is_the_tokenizers_own(tmp_path: Path, strategy: str | None) -> None:
    folder = _files(tmp_path)
    values = json.loads((folder / "tokenizer.json").read_text())
    truncation = None if strategy is None else {"max_length": 9, "strategy": strategy, "stride": 0}
    write_json(folder / "tokenizer.json", {**values, "truncation": truncation})
    names = {"OnlySecond": "only_second", "OnlyFirst": "only_first"}
    assert _scoring(folder).strategy == names.get(strategy or "", "longest_first")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"architectures": ["DebertaV2ForSequenceClassification"]},
            "'DebertaV2ForSequenceClassification' is not served",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, "'LlamaForSequenceClassification' is not served"),
        ({"id2label": {"0": "no", "1": "yes"}}, "a classifier with 2 labels is not served; a reranker has 1"),
        ({"id2label": None}, "a classifier with 2 labels"),
        ({"id2label": None, "num_labels": 3}, "a classifier with 3 labels"),
        ({"sbert_ce_default_activation_function": "torch.nn.ReLU"}, "'torch.nn.ReLU' of scores is not served"),
        ({"sentence_transformers": {"activation_fn": "mine.Act"}}, "'mine.Act' of scores is not served"),
        (
            {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "max"},
            "classifier_pooling 'max' is not one of",
        ),
        (
            {"architectures": ["ModernBertForSequenceClassification"], "classifier_activation": "snake"},
            "classifier_activation 'snake' is not one of",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    assert words in _refusal(_files(tmp_path, **config))


def test_other_modules_of_a_cross_encoder_are_refused(tmp_path: Path) -> None:
    entries = [{"path": "", "type": _TRANSFORMER}, {"path": "1_Dense", "type": "sentence_transformers.models.Dense"}]
    write_json(_files(tmp_path) / "modules.json", entries)
    write_json(tmp_path / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    assert "modules ['Transformer', 'Dense'] of a CrossEncoder are not served" in _refusal(tmp_path)


def test_an_embedding_architecture_is_no_cross_encoder(tmp_path: Path) -> None:
    write_json(
        _files(tmp_path, architectures=["BertModel"]) / "config_sentence_transformers.json",
        {"model_type": "CrossEncoder"},
    )
    assert "architecture 'BertModel' is not served as a reranker" in _refusal(tmp_path)


def test_a_template_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = _logit_score(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert "its chat template is not Qwen3-Reranker's" in _refusal(folder)


@pytest.mark.parametrize("values", [{"false_token_id": None}, {"true_token_id": "yes"}])
def test_other_than_two_answers_are_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    assert "are not two token ids" in _refusal(_logit_score(tmp_path, **values))


def test_a_vocabulary_without_answers_is_refused(tmp_path: Path) -> None:
    folder = _files(tmp_path, **_QWEN)
    values = json.loads((folder / "tokenizer.json").read_text())
    del values["model"]["vocab"]["no"]
    write_json(folder / "tokenizer.json", values)
    assert "has no token 'no'" in _refusal(folder)


def test_a_default_prompt_is_the_instruction_of_a_template_and_else_refused(tmp_path: Path) -> None:
    values = {"model_type": "CrossEncoder", "prompts": {"p": "Find recipes"}, "default_prompt_name": "p"}
    write_json(_files(tmp_path, **_QWEN) / "config_sentence_transformers.json", values)
    template = _scoring(tmp_path).template
    assert template is not None
    assert template.instruction == "Find recipes"
    _files(tmp_path)
    assert "default_prompt_name is set" in _refusal(tmp_path)


def test_a_reranker_gets_the_scoring_contract(tmp_path: Path) -> None:
    folder = _files(tmp_path / "reranker")
    repository = Repository(tmp_path / "repository")
    pipeline = repository.add(Pipeline("rank", str(folder)))
    assert pipeline.scores
    assert repository.pipelines() == [pipeline]
    configs = {path.parent.name: path.read_text() for path in repository.folder.glob("*/config.pbtxt")}
    assert {"QUERY", "DOCUMENT", "SCORE", "LOGIT"} <= set(configs["rank"].replace('"', " ").split())
    assert "EMBEDDING" not in "".join(configs.values())
    assert 'name: "rank_rose"' in configs["rank_rose"]


def test_inspect(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(_files(tmp_path))])
    assert result.exit_code == 0, result.stderr
    assert [line.split(maxsplit=1) for line in result.stdout.splitlines()] == [
        ["architecture", "bert"],
        ["max", "length    24 tokens, special tokens included"],
        ["scores", "pairs of a query and a document, as BertForSequenceClassification"],
        ["pairs", "second text of type 1"],
        ["truncation", "longest_first"],
        ["head", "pooler on cls"],
        ["activation", "Sigmoid"],
        ["dtype", "float32 on the CPU, bfloat16 on a GPU"],
        ["missing", "weights: what needs it is left open"],
        ["read", "from     config.json, tokenizer.json"],
    ]


def test_inspect_as_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(_logit_score(tmp_path)), "--json"])
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["scoring"] == {
        "architecture": "Qwen3ForCausalLM",
        "pooling": "lasttoken",
        "head": "tokens",
        "token_ids": [7, 8],
        "activation": "Sigmoid",
        "token_types": False,
        "truncation": "body",
        "instruction": "Given a web search query, retrieve relevant passages that answer the query",
    }
    assert {"modules.json", "config.json", "1_LogitScore/config.json", "chat_template.jinja"} <= set(values["files"])
