"""Whether a checkpoint can be served, as far as that can be told without serving it: for `rose inspect`."""

from __future__ import annotations

from rose_backend.config import EngineConfig
from rose_backend.engine import check_loads
from rose_backend.tensor_files import has_weights
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.score_step import ScoreStep
from rose_ensemble.texts import TextLimits
from rose_ensemble.tokenize_step import TokenizeStep


def rehearse(checkpoint: Checkpoint) -> list[str]:
    """Make a tokenizer of a checkpoint, and an engine without the numbers of its weights.

    Returns:
        Files that are not there, so that what is made of them was left out.

    Raises:
        CheckpointError: one of the two cannot be made.
    """
    missing = []
    if (checkpoint.folder / "tokenizer.json").is_file():
        (TokenizeStep if checkpoint.scoring is None else ScoreStep)(checkpoint, TextLimits())
    else:
        missing.append("tokenizer.json")
    if has_weights(checkpoint.folder):
        score = None if checkpoint.scoring is None else checkpoint.scoring.config
        check_loads(EngineConfig(checkpoint.folder, checkpoint.max_length, checkpoint.head, score=score))
    else:
        missing.append("weights")
    return missing
