"""`config.pbtxt` of a reranker's three models: where the scoring contract differs from the embedding one."""

from __future__ import annotations

from string import Template

SCORE_ENSEMBLE = Template("""\
# A query and documents in, a score for each out: the scoring contract (README.md, "Rerank").
name: "$name"
platform: "ensemble"
max_batch_size: $max_batch_size
input [
  { name: "QUERY" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "DOCUMENT" data_type: TYPE_STRING dims: [ -1 ] }
]
output [
  { name: "SCORE" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "LOGIT" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "TOKEN_COUNT" data_type: TYPE_INT32 dims: [ -1 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "$tokenize"
      model_version: -1
      input_map { key: "QUERY" value: "QUERY" }
      input_map { key: "DOCUMENT" value: "DOCUMENT" }
      output_map { key: "WORK" value: "work" }
      output_map { key: "TOKEN_COUNT" value: "TOKEN_COUNT" }
    },
    {
      model_name: "$rose"
      model_version: -1
      input_map { key: "WORK" value: "work" }
      output_map { key: "SCORE" value: "SCORE" }
      output_map { key: "LOGIT" value: "LOGIT" }
    }
  ]
}
""")

SCORE_TOKENIZE = Template("""\
# Pairs of a query and a document: templates, tokenization, truncation and counting, on the CPU.
name: "$tokenize"
backend: "python"
max_batch_size: $max_batch_size
input [
  { name: "QUERY" data_type: TYPE_STRING dims: [ -1 ] allow_ragged_batch: true },
  { name: "DOCUMENT" data_type: TYPE_STRING dims: [ -1 ] allow_ragged_batch: true }
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

SCORE_ROSE = Template("""\
# The engine. It keeps its own queue: `execute` returns at once and answers come from the completer.
name: "$rose"
backend: "python"
max_batch_size: $max_batch_size
# b, n, arrival stamp (-1: now), flags, the b x n lengths, fields, all token ids: see rose_ensemble/work.py.
input [ { name: "WORK" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true } ]
output [
  { name: "SCORE" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "LOGIT" data_type: TYPE_FP32 dims: [ -1 ] }
]
$batching
# The device is ours to choose, so the kind is MODEL; an instance reads its device from its group's name.
instance_group [ $groups ]
parameters { key: "checkpoint" value { string_value: "$checkpoint" } }
$settings
""")
