"""`config.pbtxt` of a reranker's models, where the scoring contract differs from the embedding one."""

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

SCORE_CONTRACT = {
    "work": "Pairs of a query and a document: templates, tokenization, truncation and counting, on the CPU.",
    "inputs": """\
  { name: "QUERY" data_type: TYPE_STRING dims: [ -1 ] allow_ragged_batch: true },
  { name: "DOCUMENT" data_type: TYPE_STRING dims: [ -1 ] allow_ragged_batch: true }""",
    "about_outputs": "",
    "outputs": """\
  { name: "SCORE" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "LOGIT" data_type: TYPE_FP32 dims: [ -1 ] }""",
}
"""What goes into `tokenize` and comes out of `rose`; the rest of both is as for embedding checkpoints."""
