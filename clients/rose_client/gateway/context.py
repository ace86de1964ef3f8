"""What belongs to one HTTP request besides its body."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from rose_client.wire import EmbedOptions

_KEY = "rose.context"


@dataclass
class Context:
    """Filled by the shell; `upstream_seconds`, `num_characters` by the service, `num_tokens` by whoever asks servers.

    Attributes:
        request_id: the sender's, or one of ours.
        trace: W3C trace context, as request parameters.
        began: `time.perf_counter` of the first byte.
        upstream_seconds: spent waiting for servers.
        num_characters: of all texts.
        num_tokens: that were run.
    """

    request_id: str
    trace: EmbedOptions
    began: float = field(default_factory=time.perf_counter)
    upstream_seconds: float = 0.0
    num_characters: int = 0
    num_tokens: int = 0

    def put(self, scope: Any) -> None:
        """Attach it to an ASGI scope."""
        scope[_KEY] = self


def context_of(request: Request) -> Context:
    """The context of a request."""
    context: Context = request.scope[_KEY]
    return context


RequestContext = Annotated[Context, Depends(context_of)]
"""Annotation of a route's parameter `context`."""
