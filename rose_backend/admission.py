"""What a request must satisfy before it may queue, however it reached the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rose_backend.core import Field, Int32Array, Request, Spans
from rose_backend.errors import InvalidArgumentError

_FEW = 64  # numbers that Python looks through as fast as numpy, whose way there is long after a pause


@dataclass(frozen=True)
class Limits:
    """Bounds every request is checked against.

    Attributes:
        vocab_size: token ids lie in `[0, vocab_size)`; one outside would read foreign memory on a device.
        max_length: most tokens in one sequence.
        fields: what sequences may carry.
        spans: whether parts of sequences may have vectors.
    """

    vocab_size: int
    max_length: int
    fields: tuple[Field, ...] = ()
    spans: bool = False

    def fault(self, request: Request) -> InvalidArgumentError | None:
        """What is wrong with a request, or None."""
        try:
            self.check(request)
        except InvalidArgumentError as error:
            return error.as_value()
        return None

    def check(self, request: Request) -> None:
        """Admit or refuse.

        Raises:
            InvalidArgumentError: names the tensor, the offending value and the limit.
        """
        lengths, input_ids = request.lengths, request.input_ids
        if len(lengths) == 0:
            raise InvalidArgumentError("LENGTHS is empty: a request needs at least one sequence")
        shortest, longest = _extremes(lengths)
        if shortest < 1:
            raise InvalidArgumentError(f"LENGTHS holds {shortest}: every sequence needs at least 1 token")
        if longest > self.max_length:
            raise InvalidArgumentError(f"LENGTHS holds {longest}: the limit is {self.max_length} tokens")
        total = longest if len(lengths) == 1 else int(request.offsets[-1])
        if total != len(input_ids):
            raise InvalidArgumentError(f"LENGTHS adds up to {total}, but INPUT_IDS holds {len(input_ids)} ids")
        # As unsigned numbers negative ids are the largest, so one pass finds either fault.
        if len(input_ids) <= _FEW or np.maximum.reduce(input_ids.view(np.uint32)) >= self.vocab_size:
            lowest, highest = _extremes(input_ids)
            if lowest < 0 or highest >= self.vocab_size:
                wrong = lowest if lowest < 0 else highest
                raise InvalidArgumentError(
                    f"INPUT_IDS holds {wrong}: token ids lie between 0 and {self.vocab_size - 1}"
                )
        for name in request.fields:
            if name not in self.fields:
                raise InvalidArgumentError(f"field {name.name} is not used by this checkpoint")
            lowest, highest = _extremes(request.fields[name])
            if lowest < 0 or highest > self.max_length:
                wrong = lowest if lowest < 0 else highest
                raise InvalidArgumentError(f"field {name.name} holds {wrong}: it lies between 0 and {self.max_length}")
        if request.spans is not None:
            self._check_spans(request, request.spans)

    def _check_spans(self, request: Request, spans: Spans) -> None:
        if not self.spans:
            raise InvalidArgumentError("this checkpoint does not pool the mean of all tokens: no part has a vector")
        if len(spans.counts) != request.num_sequences or int(spans.counts.min()) < 1:
            raise InvalidArgumentError("every sequence needs at least 1 span")
        if not len(spans.starts) == len(spans.stops) == int(spans.offsets[-1]):
            raise InvalidArgumentError(f"spans add up to {int(spans.offsets[-1])}, but there are {len(spans.starts)}")
        limits = np.repeat(request.lengths, spans.counts)
        if (spans.starts < 0).any() or (spans.starts > spans.stops).any() or (spans.stops > limits).any():
            raise InvalidArgumentError("a span lies outside its sequence")


def _extremes(values: Int32Array) -> tuple[int, int]:
    """Smallest and largest."""
    if len(values) <= _FEW:
        listed = values.tolist()
        return min(listed), max(listed)
    return int(values.min()), int(values.max())
