"""Which text goes in front of an input. Plain concatenation before tokenization, as sentence-transformers does."""

from __future__ import annotations

from rose_backend.errors import InvalidArgumentError
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.options import RequestOptions

_PROMPTS_BY_TYPE = {"query": ("query",), "document": ("document", "passage", "corpus")}


def prompt_for(checkpoint: Checkpoint, options: RequestOptions) -> str:
    """The prompt of one request, possibly empty.

    An `input_type` for which the checkpoint has no prompt gets none, not even the default one, as sentence-transformers
    documents of `encode_query` and `encode_document`. (Its release 6.2 never gets beyond `document` among the prompts
    for documents, because it adds an empty one of that name to every checkpoint; its documentation is followed here.)

    Raises:
        InvalidArgumentError: `prompt_name` is not one of the checkpoint's.
    """
    if options.prompt is not None:
        return options.prompt
    prompts = checkpoint.prompts
    if options.prompt_name is not None:
        if options.prompt_name not in prompts:
            raise InvalidArgumentError(
                f"parameter 'prompt_name' is {options.prompt_name!r}; this checkpoint has {sorted(prompts)}"
            )
        return prompts[options.prompt_name]
    if options.input_type is not None:
        return next((prompts[name] for name in _PROMPTS_BY_TYPE[options.input_type] if name in prompts), "")
    return "" if checkpoint.default_prompt_name is None else prompts[checkpoint.default_prompt_name]
