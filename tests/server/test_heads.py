"""A checkpoint with all that a head can have behind a real server, against sentence-transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from rose_client import AsyncRoseClient, EmbedOptions, RequestError, RoseClient
from rose_ensemble.server_process import Endpoints
from tests.support.cases import HARBOUR, TEA_IDS
from tests.support.library import HIDDEN, alone, edit_json, library, save_with_library
from tests.support.serving import Serving, serving
from tests.support.vectors import assert_close
from tests.support.wire import RawGrpc, int_tensor

pytestmark = pytest.mark.slow

_TEXTS = [HARBOUR, "tea", "", "stone " * 60, "tea"]
_DIM = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """Two ways of pooling without prompts, a projection, Normalize; trained to be cut to 8 and 16."""
    dense = [Dense(2 * HIDDEN, _DIM)]
    place = tmp_path_factory.mktemp("checkpoint")
    saved = save_with_library(place, minilm, pooling=["mean", "max"], include_prompt=False, dense=dense)
    prompts = {"query": "harbour wall: ", "document": ""}
    edit_json(saved / "config_sentence_transformers.json", prompts=prompts)
    return saved


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceTransformer:
    """Without its Normalize module, so that what is cut can be scaled after."""
    model = library(folder)
    del model[-1]
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Serving]:
    options = (f"--checkpoint={folder}", "--name=heads", "--matryoshka=8,16", "--probe-interval=600")
    with serving(tmp_path_factory.mktemp("serve"), *options) as found:
        yield found


async def test_requests_of_all_kinds_share_batches(served: Serving, model: SentenceTransformer) -> None:
    ways = [
        EmbedOptions(dimensions=8, input_type="query"),
        EmbedOptions(),
        EmbedOptions(dimensions=16, input_type="document"),
        EmbedOptions(dimensions=16, normalize=False, prompt="tea "),
        EmbedOptions(dimensions=_DIM, prompt_name="query"),
    ]
    expected: list[npt.NDArray[np.float32]] = []
    for way in ways:
        prompts = {"query": "harbour wall: ", "document": ""}
        prompt = way.get("prompt", prompts.get(way.get("input_type", way.get("prompt_name", "document"))))
        scaled = way.get("normalize", True)
        expected.append(
            alone(model, _TEXTS, prompt=prompt, truncate_dim=way.get("dimensions"), normalize_embeddings=scaled)
        )
    async with AsyncRoseClient(served.grpc, model="heads") as client:
        answers = await asyncio.gather(*(client.embed(_TEXTS, **way) for way in ways * 5))
    for number, vectors in enumerate(answers):
        assert_close(vectors, expected[number % len(ways)])


@pytest.mark.parametrize("dimensions", [9, 49])
def test_other_dimensions_are_refused(served: Serving, dimensions: int) -> None:
    with RoseClient(served.grpc, model="heads") as client, pytest.raises(RequestError) as refused:
        client.embed(["tea"], dimensions=dimensions)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert f"'dimensions' is {dimensions}; this checkpoint has 8, 16, 48" in refused.value.message


def test_a_checkpoint_that_is_not_trained_for_it_refuses_dimensions(server: Endpoints) -> None:
    with RoseClient(server.grpc) as client:
        with pytest.raises(RequestError, match=r"'dimensions' is 64: .* not trained to be cut; they have 384"):
            client.embed(["tea"], dimensions=64)
        assert client.embed(["tea"], dimensions=384).shape == (1, 384)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ([1, 1, -1, 1, 3, 2, *TEA_IDS], "field POOL_FROM is not used by this checkpoint"),
        ([1, 1, -1, 64, 3, 2, *TEA_IDS], "WORK has flags 0x40"),
    ],
)
def test_the_engine_checks_fields_that_it_is_sent_directly(raw_grpc: RawGrpc, work: list[int], words: str) -> None:
    assert words in raw_grpc.refusal([int_tensor("WORK", work)], "rose")
