"""One checkpoint = three Triton models: `<name>` (ensemble), `<name>_tokenize`, `<name>_rose`."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import Template

from rose_ensemble.default_checkpoint import DEFAULT_CHECKPOINT
from rose_ensemble.engine_settings import EngineSettings
from rose_ensemble.score_configs import SCORE_CONTRACT, SCORE_ENSEMBLE

# So large that a request with too many rows reaches our own check (TextLimits), whose message names the field.
_MAX_BATCH_SIZE = 2**20

_TOGETHER = """\
# Requests that wait together arrive in one call.
dynamic_batching { max_queue_delay_microseconds: 0 }"""
_ONE_BY_ONE = """\
# No dynamic batching: among several engines requests are dealt one by one. Those that wait together are often large,
# and in one call all would be one engine's."""

_ENSEMBLE = Template("""\
# Text in, vectors out: the embedding contract (README.md, "Request and response").
name: "$name"
platform: "ensemble"
max_batch_size: $max_batch_size
input [
  { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "TOKEN_IDS" data_type: TYPE_INT32 dims: [ -1 ] optional: true },
  { name: "TOKEN_LENGTHS" data_type: TYPE_INT32 dims: [ -1 ] optional: true },
  { name: "CHUNK_COUNTS" data_type: TYPE_INT32 dims: [ -1 ] optional: true }
]
output [
$vectors,
  { name: "TOKEN_COUNT" data_type: TYPE_INT32 dims: [ -1 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "$tokenize"
      model_version: -1
      input_map { key: "TEXT" value: "TEXT" }
      input_map { key: "TOKEN_IDS" value: "TOKEN_IDS" }
      input_map { key: "TOKEN_LENGTHS" value: "TOKEN_LENGTHS" }
      input_map { key: "CHUNK_COUNTS" value: "CHUNK_COUNTS" }
      output_map { key: "WORK" value: "work" }
      output_map { key: "TOKEN_COUNT" value: "TOKEN_COUNT" }
    },
    {
      model_name: "$rose"
      model_version: -1
      input_map { key: "WORK" value: "work" }
$vector_maps
    }
  ]
}
""")

_TOKENIZE = Template("""\
# $work
name: "$tokenize"
backend: "python"
max_batch_size: $max_batch_size
input [
$inputs
]
output [
  { name: "WORK" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "TOKEN_COUNT" data_type: TYPE_INT32 dims: [ -1 ] }
]
# No queue delay: whatever waits goes in one call, and nothing waits for company.
dynamic_batching { max_queue_delay_microseconds: 0 }
instance_group [ { kind: KIND_CPU count: $tokenizers } ]
parameters { key: "checkpoint" value { string_value: "$checkpoint" } }
parameters { key: "engine_model" value { string_value: "$rose" } }
parameters { key: "engines" value { string_value: "$engines" } }
""")

_ROSE = Template("""\
# The engine. It keeps its own queue: `execute` returns at once and answers come from the completer.
name: "$rose"
backend: "python"
max_batch_size: $max_batch_size
# b, n, arrival stamp (-1: now), flags, the b x n lengths, fields, all token ids: see rose_ensemble/work.py.
input [ { name: "WORK" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true } ]
${about_outputs}output [
$outputs
]
$batching
# The device is ours to choose, so the kind is MODEL; an instance reads its device from its group's name.
instance_group [ $groups ]
parameters { key: "checkpoint" value { string_value: "$checkpoint" } }
$settings
""")

_TENSORS = {
    "float": ('name: "EMBEDDING" data_type: TYPE_FP32 dims: [ -1, -1 ]',),
    "int8": ('name: "EMBEDDING_INT8" data_type: TYPE_INT8 dims: [ -1, -1 ]',),
    "binary": ('name: "EMBEDDING_BINARY" data_type: TYPE_UINT8 dims: [ -1, -1 ]',),
    "token": (
        'name: "TOKEN_EMBEDDING" data_type: TYPE_FP32 dims: [ -1, -1 ]',
        'name: "TOKEN_EMBEDDING_LENGTHS" data_type: TYPE_INT32 dims: [ -1 ]',
    ),
    "sparse": (
        'name: "SPARSE_INDEX" data_type: TYPE_INT32 dims: [ -1 ]',
        'name: "SPARSE_WEIGHT" data_type: TYPE_FP32 dims: [ -1 ]',
        'name: "SPARSE_LENGTHS" data_type: TYPE_INT32 dims: [ -1 ]',
    ),
}
"""What carries each form of vectors."""

_CONTRACT = {
    "work": "Templates, tokenization, truncation and counting, on the CPU.",
    "inputs": """\
  { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "TOKEN_IDS" data_type: TYPE_INT32 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "TOKEN_LENGTHS" data_type: TYPE_INT32 dims: [ -1 ] optional: true allow_ragged_batch: true },
  { name: "CHUNK_COUNTS" data_type: TYPE_INT32 dims: [ -1 ] optional: true allow_ragged_batch: true }""",
    "about_outputs": "# Of these, those that the parameter `outputs` asks for.\n",
}
"""Where the models of embedding checkpoints differ from those of rerankers (`SCORE_CONTRACT`)."""


@dataclass(frozen=True)
class Pipeline:
    """How one checkpoint is served.

    Attributes:
        name: the ensemble clients call.
        checkpoint: absolute path of a folder, or `DEFAULT_CHECKPOINT`.
        devices: one engine each: `auto`, `cpu`, `cuda:0`, ...
        tokenizers: processes that tokenize.
        engine: what each engine is told.
        scores: whether the checkpoint is a reranker, whose ensemble has the scoring contract.
        outputs: of an embedding checkpoint, the forms its vectors can have. The ensemble names each to the engine's
            model in every request, so one that the checkpoint lacks costs every request (each of seven tensors about
            a thirtieth of the engine process' time on requests of one short text).
    """

    name: str = "embed"
    checkpoint: str = DEFAULT_CHECKPOINT
    devices: tuple[str, ...] = ("auto",)
    tokenizers: int = 1
    engine: EngineSettings = field(default_factory=EngineSettings)
    scores: bool = False
    outputs: tuple[str, ...] = ("float", "binary", "token")

    @property
    def tokenize_name(self) -> str:
        """Model name of the first step."""
        return "tokenize" if self._is_default else f"{self.name}_tokenize"

    @property
    def rose_name(self) -> str:
        """Model name of the second step."""
        return "rose" if self._is_default else f"{self.name}_rose"

    @property
    def _is_default(self) -> bool:
        return self.name == "embed"

    def configs(self) -> dict[str, str]:
        """Text of `config.pbtxt` for each of the three models, by model name."""
        groups = ", ".join(
            f'{{ name: "engine-{index}-{device.replace(":", "-")}" kind: KIND_MODEL count: 1 }}'
            for index, device in enumerate(self.devices)
        )
        values = {
            "name": self.name,
            "tokenize": self.tokenize_name,
            "rose": self.rose_name,
            "checkpoint": self.checkpoint.replace("\\", "\\\\").replace('"', '\\"'),
            "tokenizers": self.tokenizers,
            "groups": groups,
            "engines": len(self.devices),
            "settings": "\n".join(
                f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
                for key, value in self.engine.to_parameters().items()
            ),
            "max_batch_size": _MAX_BATCH_SIZE,
            "batching": _TOGETHER if len(self.devices) == 1 else _ONE_BY_ONE,
        }
        tensors = [tensor for form, members in _TENSORS.items() if form in self.outputs for tensor in members]
        vectors = ",\n".join(f"  {{ {tensor} }}" for tensor in tensors)
        names = [tensor.split('"')[1] for tensor in tensors]
        values["vectors"] = vectors
        values["vector_maps"] = "\n".join(f'      output_map {{ key: "{name}" value: "{name}" }}' for name in names)
        ensemble, contract = _ENSEMBLE, {**_CONTRACT, "outputs": vectors}
        if self.scores:
            ensemble, contract = SCORE_ENSEMBLE, SCORE_CONTRACT
        return {
            self.name: ensemble.substitute(values),
            self.tokenize_name: _TOKENIZE.substitute(values, **contract),
            self.rose_name: _ROSE.substitute(values, **contract),
        }


def index_of_instance(instance_name: str) -> int:
    """Which of the model's engines an instance is, from 0; the name is as for `device_of_instance`."""
    return int(instance_name.split("-", 2)[1])


def device_of_instance(instance_name: str) -> str:
    """The torch device an instance serves, from Triton's instance name (`<group>_<index>`).

    Example:
        `engine-1-cuda-0_0` serves `cuda:0`.
    """
    device = instance_name.rsplit("_", 1)[0].split("-", 2)[-1]
    return device.replace("-", ":")
