"""Which checkpoints score pairs of texts, and how: by the rules of sentence-transformers' CrossEncoder.

Served: one-label classifiers on BERT, RoBERTa, XLM-RoBERTa, CamemBERT and ModernBERT, and Qwen3-Reranker, as the
language model it is or converted to a classifier. Everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose_backend.config import Activation, PoolingMode, ScoreConfig, ScoreHead
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint_files import CheckpointFiles, flag, refuse_others, refuse_unknown
from rose_ensemble.modules import TORCH_ACTIVATIONS, module_places

SCORE_ACTIVATIONS = (Activation.IDENTITY, Activation.SIGMOID, Activation.TANH)
"""What may lie between a logit and a score."""

LONGEST_FIRST, ONLY_FIRST, ONLY_SECOND = "longest_first", "only_first", "only_second"
_STRATEGIES = {"LongestFirst": LONGEST_FIRST, "OnlyFirst": ONLY_FIRST, "OnlySecond": ONLY_SECOND}
_LOGIT_SCORE = "LogitScore"
_LOGIT_SCORE_KEYS = ("true_token_id", "false_token_id", "module_input_name")
_INNER = {
    "gelu": Activation.GELU,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "tanh": Activation.TANH,
}

# From the card of Qwen3-Reranker. The two newlines at the end belong to it.
_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_ANSWERS = ("yes", "no")
_RECOGNISED_BY = ("Judge whether the Document meets the requirements", "<Instruct>", "<Query>", "<Document>")


@dataclass(frozen=True)
class PairTemplate:
    """Words around a query and a document.

    Attributes:
        prefix: tokenized by itself and never cut.
        suffix: as well; the score is read off its last token.
        instruction: of requests that give none.
    """

    prefix: str = _PREFIX
    suffix: str = _SUFFIX
    instruction: str = _INSTRUCTION

    def body(self, instruction: str | None, query: str, document: str) -> str:
        """What stands between prefix and suffix."""
        wanted = self.instruction if instruction is None else instruction
        return f"<Instruct>: {wanted}\n<Query>: {query}\n<Document>: {document}"


@dataclass(frozen=True)
class Scoring:
    """How pairs become logits and scores.

    Attributes:
        architecture: as `config.json` names it.
        config: of the engine's head.
        template: what the texts are put into; None: they are joined as `tokenizer.json` joins pairs.
        strategy: which text of a pair that is too long is cut; with a template it is always the end of its body.
    """

    architecture: str
    config: ScoreConfig
    template: PairTemplate | None = None
    strategy: str = LONGEST_FIRST


def scores_pairs(folder: Path) -> bool:
    """Whether a checkpoint is a reranker: by sentence-transformers' files, else its architecture.

    A language model of Qwen3's kind without such files is one unless its tokenizer puts a token behind each text, as
    Qwen3-Embedding's does.

    Raises:
        CheckpointError: a file is malformed.
    """
    files = CheckpointFiles()  # of its own: what is read here is read again by whoever needs more of it
    declared = files.mapping(folder / "config_sentence_transformers.json", optional=True).get("model_type")
    if (folder / "modules.json").is_file():
        kinds = [kind for kind, _ in module_places(files, folder)]
        return declared == "CrossEncoder" or _LOGIT_SCORE in kinds
    if declared is not None:
        return bool(declared == "CrossEncoder")
    config = files.mapping(folder / "config.json")
    name = _architecture(config)
    if name == "Qwen3ForCausalLM" and (folder / "tokenizer.json").is_file():
        return not _ends_texts(files.mapping(folder / "tokenizer.json"))
    return name.endswith("ForSequenceClassification")


def transformer_folder(files: CheckpointFiles, folder: Path) -> Path:
    """Where a reranker's transformer lies.

    Raises:
        CheckpointError: `modules.json` has others beside it than are served.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return folder
    (kind, place), *others = module_places(files, folder)
    if kind != "Transformer" or [other for other, _ in others] not in ([], [_LOGIT_SCORE]):
        kinds = [kind, *(other for other, _ in others)]
        raise CheckpointError(
            f"{path}: modules {kinds} of a CrossEncoder are not served; "
            "expected Transformer, then LogitScore or nothing"
        )
    return place


def task_of(config: Mapping[str, Any]) -> str:
    """What sentence-transformers calls the use that is made of a reranker's transformer."""
    return "text-generation" if _architecture(config).endswith("ForCausalLM") else "sequence-classification"


def read_scoring(
    files: CheckpointFiles,
    folder: Path,
    transformer: tuple[Path, Mapping[str, Any]],
    declared: tuple[Path, Mapping[str, Any]],
    default_prompt: str,
) -> Scoring:
    """How a reranker scores.

    Args:
        files: reads what else is needed.
        folder: the checkpoint.
        transformer: the path of its `config.json`, and what it holds.
        declared: `config_sentence_transformers.json` likewise.
        default_prompt: text of the default prompt, or empty.

    Raises:
        CheckpointError: the files ask for something that is not served; names it.
    """
    path, config = transformer
    name = _architecture(config)
    read_head = _HEADS.get(name)
    if read_head is None:
        raise CheckpointError(f"{path}: architecture {name!r} is not served as a reranker; known: {sorted(_HEADS)}")
    head = read_head(_Source(files, folder, path, config, _activation(path, config, declared)))
    if head.pooling is PoolingMode.LAST:
        return Scoring(name, head, PairTemplate(instruction=default_prompt or _INSTRUCTION))
    if default_prompt:
        raise CheckpointError(f"{declared[0]}: default_prompt_name is set; prompts in front of pairs are not served")
    return Scoring(name, head, strategy=_strategy(files, path.parent / "tokenizer.json"))


@dataclass(frozen=True)
class _Source:
    """What heads are read from."""

    files: CheckpointFiles
    folder: Path
    path: Path
    config: Mapping[str, Any]
    activation: Activation


def _bert(source: _Source) -> ScoreConfig:
    _one_label(source)
    inputs = source.files.mapping(source.path.parent / "tokenizer_config.json", optional=True).get("model_input_names")
    types = not isinstance(inputs, list) or "token_type_ids" in inputs
    return ScoreConfig(ScoreHead.POOLER, PoolingMode.CLS, source.activation, token_types=types)


def _roberta(source: _Source) -> ScoreConfig:
    _one_label(source)
    return ScoreConfig(ScoreHead.CLASSIFIER, PoolingMode.CLS, source.activation)


def _modernbert(source: _Source) -> ScoreConfig:
    _one_label(source)
    path, config = source.path, source.config
    pooling, inner = config.get("classifier_pooling", "cls"), config.get("classifier_activation", "gelu")
    if pooling not in ("cls", "mean"):
        raise CheckpointError(f"{path}: classifier_pooling {pooling!r} is not one of ['cls', 'mean']")
    if inner not in _INNER:
        raise CheckpointError(f"{path}: classifier_activation {inner!r} is not one of {sorted(_INNER)}")
    return ScoreConfig(
        ScoreHead.PREDICTION,
        PoolingMode(pooling),
        source.activation,
        inner=_INNER[inner],
        bias=flag(path, config, "classifier_bias", default=False),
        norm_eps=float(config.get("norm_eps", 1e-5)),
        norm_bias=flag(path, config, "norm_bias", default=False),
    )


def _classified_decoder(source: _Source) -> ScoreConfig:
    _one_label(source)
    return ScoreConfig(ScoreHead.SCORE, PoolingMode.LAST, source.activation, bias=False)


def _language_model(source: _Source) -> ScoreConfig:
    ids = _declared_answers(source) or _answers(source.files, source.path.parent / "tokenizer.json")
    tied = flag(source.path, source.config, "tie_word_embeddings", default=False)
    return ScoreConfig(ScoreHead.TOKENS, PoolingMode.LAST, source.activation, token_ids=ids, tied=tied)


_HEADS: Mapping[str, Callable[[_Source], ScoreConfig]] = {
    "BertForSequenceClassification": _bert,
    "CamembertForSequenceClassification": _roberta,
    "ModernBertForSequenceClassification": _modernbert,
    "Qwen3ForCausalLM": _language_model,
    "Qwen3ForSequenceClassification": _classified_decoder,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
}


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _ends_texts(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a `tokenizer.json` puts special tokens around texts."""
    processor = tokenizer.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    return any(step.get("type", "ByteLevel") != "ByteLevel" for step in steps)


def _one_label(source: _Source) -> None:
    """One logit is a score; which of several would be one, no file says. Where none counts them there are two."""
    names = source.config.get("id2label")
    count = len(names) if isinstance(names, dict) else source.config.get("num_labels", 2)
    if count != 1:
        raise CheckpointError(f"{source.path}: a classifier with {count} labels is not served; a reranker has 1")


def _activation(path: Path, config: Mapping[str, Any], declared: tuple[Path, Mapping[str, Any]]) -> Activation:
    """`CrossEncoder`'s order: its own file, `config.json` by the new key, by the old key, the sigmoid for one label."""
    own = config.get("sentence_transformers") or {}
    if declared[1].get("activation_fn") is not None:
        origin, named = declared[0], declared[1]["activation_fn"]
    elif "activation_fn" in own:
        origin, named = path, own["activation_fn"]
    else:
        origin, named = path, config.get("sbert_ce_default_activation_function")
    if named is None:
        return Activation.SIGMOID
    activation = TORCH_ACTIVATIONS.get(named) if isinstance(named, str) else None
    if activation not in SCORE_ACTIVATIONS:
        known = [activation.value for activation in SCORE_ACTIVATIONS]
        raise CheckpointError(
            f"{origin}: activation function {named!r} of scores is not served; known in torch.nn: {known}"
        )
    return activation


def _strategy(files: CheckpointFiles, path: Path) -> str:
    named = (files.mapping(path).get("truncation") or {}).get("strategy", "LongestFirst")
    if named not in _STRATEGIES:
        raise CheckpointError(f"{path}: truncation strategy {named!r} is not one of {sorted(_STRATEGIES)}")
    return _STRATEGIES[named]


def _answers(files: CheckpointFiles, path: Path) -> tuple[int, int]:
    """The ids of the tokens that are the answers, found by their text."""
    vocabulary = (files.mapping(path).get("model") or {}).get("vocab")
    words = vocabulary if isinstance(vocabulary, dict) else {}
    missing = [word for word in _ANSWERS if word not in words]
    if missing:
        raise CheckpointError(f"{path} has no token {missing[0]!r}, whose logit scores are made of")
    wanted, other = (int(words[word]) for word in _ANSWERS)
    return wanted, other


def _declared_answers(source: _Source) -> tuple[int, int] | None:
    """Those a LogitScore module names, if there is one; then the chat template must be the one served."""
    if not (source.folder / "modules.json").is_file():
        return None
    place = dict(module_places(source.files, source.folder)).get(_LOGIT_SCORE)
    if place is None:
        return None
    path = place / "config.json"
    values = source.files.mapping(path)
    refuse_unknown(path, values, _LOGIT_SCORE_KEYS)
    refuse_others(path, values, "module_input_name", ("causal_logits",))
    wanted, other = values.get("true_token_id"), values.get("false_token_id")
    if type(wanted) is not int or type(other) is not int:
        raise CheckpointError(f"{path}: true_token_id {wanted!r} and false_token_id {other!r} are not two token ids")
    template = _chat_template(source.files, source.path.parent)
    if not all(words in template for words in _RECOGNISED_BY):
        raise CheckpointError(f"{source.path.parent}: its chat template is not Qwen3-Reranker's, the only one served")
    return wanted, other


def _chat_template(files: CheckpointFiles, folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return files.text(path)
    return str(files.mapping(folder / "tokenizer_config.json", optional=True).get("chat_template") or "")
