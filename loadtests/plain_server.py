"""What many write first: `SentenceTransformer.encode` behind FastAPI, one request at a time. For comparisons.

python loadtests/plain_server.py --checkpoint FOLDER --port 7998     # POST /v1/embeddings, vectors as float lists
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
from starlette.concurrency import run_in_threadpool


class EmbeddingRequest(BaseModel):
    """The part of OpenAI's request that load tests send."""

    model: str
    input: list[str]


def application(model: SentenceTransformer) -> FastAPI:
    """The route around a model."""
    app = FastAPI()
    turn = asyncio.Lock()

    @app.post("/v1/embeddings")
    async def embeddings(request: EmbeddingRequest) -> dict[str, Any]:
        async with turn:
            vectors = await run_in_threadpool(model.encode, request.input, batch_size=32)
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(vectors.tolist())]
        words = sum(len(text.split()) for text in request.input)
        return {
            "object": "list",
            "model": request.model,
            "data": data,
            "usage": {"prompt_tokens": words, "total_tokens": words},
        }

    return app


def main() -> None:
    """Serve on loopback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--port", type=int, default=7998)
    args = parser.parse_args()
    model = SentenceTransformer(args.checkpoint, device="cpu")
    uvicorn.run(application(model), host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
