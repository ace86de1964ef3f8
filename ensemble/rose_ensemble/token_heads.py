"""BGE-M3's further heads: `sparse_linear.pt` and `colbert_linear.pt` beside the transformer's weights.

By FlagEmbedding's rules: a token's sparse weight is relu(linear(h)), of equal tokens the largest counts, and those of
the tokens below have none; multi-vectors are unit vectors of linear(h) of every token but the first.
"""

from __future__ import annotations

from pathlib import Path

from rose_backend.config import TokenHeads
from rose_backend.errors import CheckpointError
from rose_ensemble.checkpoint_files import CheckpointFiles

SPARSE_FILE, MULTI_VECTOR_FILE = "sparse_linear.pt", "colbert_linear.pt"

_WEIGHTLESS = {"cls_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def read_token_heads(files: CheckpointFiles, folder: Path) -> TokenHeads:
    """Which of them there are.

    Args:
        files: reads them.
        folder: of the transformer.

    Raises:
        CheckpointError: the tokenizer does not say which tokens have no sparse weight.
    """
    sparse, multi_vector = (
        path if path.is_file() else None for path in (folder / SPARSE_FILE, folder / MULTI_VECTOR_FILE)
    )
    files.read += [path for path in (sparse, multi_vector) if path is not None]
    return TokenHeads(sparse, multi_vector, () if sparse is None else _weightless(files, folder))


def _weightless(files: CheckpointFiles, folder: Path) -> tuple[int, ...]:
    """The ids of the tokens that mean nothing by themselves."""
    from tokenizers import Tokenizer  # the command line reads checkpoints, and hardly any has such heads

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: only fast tokenizers are served")
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    named = files.mapping(folder / "tokenizer_config.json", optional=True)
    ids = []
    for key, usual in _WEIGHTLESS.items():
        token = named.get(key, usual)
        found = tokenizer.token_to_id(str(token.get("content") if isinstance(token, dict) else token))
        if found is None:
            raise CheckpointError(f"{path}: {key} {token!r} is not in the vocabulary")
        ids.append(int(found))
    return tuple(ids)
