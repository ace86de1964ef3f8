"""Texts through tokenizer and engine without a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rose_backend.admission import Limits
from rose_backend.config import EngineConfig
from rose_backend.core import OF_TOKENS, Output, Request
from rose_backend.engine import RoseEngine
from rose_backend.packer import TokenPacker
from rose_ensemble.checkpoint import Checkpoint
from rose_ensemble.options import RequestOptions
from rose_ensemble.outputs import OutputRules, Wanted, forms_of, tensors_of
from rose_ensemble.texts import TextLimits
from rose_ensemble.tokenize_step import TokenizeInput, TokenizeOutput, TokenizeStep
from rose_ensemble.work import Work
from tests.unit.builders import Answers


class Served:
    """A checkpoint's tokenizer and engine on the CPU."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._step = TokenizeStep(checkpoint, TextLimits())
        self._engine = RoseEngine(EngineConfig(checkpoint.folder, checkpoint.max_length, checkpoint.head))

    def embed(self, texts: Sequence[str], **options: Any) -> npt.NDArray[np.float32]:
        """All texts in one batch, `[num_texts, dim]`."""
        [vectors] = self.embed_together([(texts, RequestOptions(**options))])
        return vectors

    def embed_together(self, requests: Sequence[tuple[Sequence[str], RequestOptions]]) -> list[npt.NDArray[np.float32]]:
        """Several requests in one batch; each one's `[num_texts, dim]`, cut to its dimensions."""
        return [made["EMBEDDING"] for made in self.codes_together(requests)]

    def codes_together(
        self,
        requests: Sequence[tuple[Sequence[str], RequestOptions]],
        chunk_counts: Sequence[Sequence[int] | None] = (),
    ) -> list[dict[str, npt.NDArray[Any]]]:
        """Several requests in one batch; each one's tensors by name.

        Args:
            requests: texts and options.
            chunk_counts: of each, how many of its texts form each document.
        """
        counts = [
            None if count is None else np.array(count, np.int32) for count in chunk_counts or [None] * len(requests)
        ]
        inputs = [
            TokenizeInput(list(texts), (1, len(texts)), options, 0, count)
            for (texts, options), count in zip(requests, counts, strict=True)
        ]
        wanted = [self.checkpoint.matryoshka.wanted(options.dimensions) for _, options in requests]
        queue: deque[Request] = deque()
        for output, (_, options), dims in zip(self._step.run(inputs), requests, wanted, strict=True):
            assert isinstance(output, TokenizeOutput), output
            normalize = self.checkpoint.head.normalize if options.normalize is None else options.normalize
            work = Work.unpack(output.work.pack())
            request = Request(
                work.input_ids,
                work.lengths,
                Answers(),
                normalize,
                dims=dims,
                rescale=options.renormalize,
                fields=work.fields,
            )
            request.outputs, request.spans = forms_of(options.outputs, self.checkpoint.head), work.spans
            Limits(self._engine.vocab_size, self.checkpoint.max_length, self._engine.fields, True).check(request)
            OutputRules(self.checkpoint.head, self.checkpoint.matryoshka.dim).check(request)
            queue.append(request)
        queued = list(queue)
        batch = TokenPacker(10_000, 1_000).take(queue)
        assert batch is not None
        assert not queue
        assert batch.num_sequences == sum(request.num_sequences for request in queued)
        unsorted: dict[Output, npt.NDArray[Any]] = {}
        unsorted_tokens: dict[Output, npt.NDArray[Any]] = {}
        for form, values in self._engine.step(batch).results().items():
            of_tokens = form in OF_TOKENS
            target = unsorted_tokens if of_tokens else unsorted
            target[form] = np.empty_like(values)
            target[form][batch.token_order if of_tokens else batch.order] = values
        made, first, tokens = [], 0, 0
        for request, (_, options) in zip(queued, requests, strict=True):
            stop = first + request.num_rows
            results = {form: values[first:stop] for form, values in unsorted.items()}
            results |= {form: unsorted_tokens[form][tokens : tokens + request.num_tokens] for form in unsorted_tokens}
            tokens += request.num_tokens
            heads, shape = self.checkpoint.head.tokens, (1, request.num_rows)
            found = tensors_of(Wanted.of(request), results, shape, heads, lsb_first=options.bit_order == "lsb")
            made.append({name: values[0] for name, values in found})
            first = stop
        return made
