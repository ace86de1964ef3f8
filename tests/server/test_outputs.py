"""Codes through a real server: what a request asks for arrives, and nothing else, whatever shares its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpcclient
from sentence_transformers.util.quantization import quantize_embeddings
from typer.testing import CliRunner

from rose_client import AsyncRoseClient, ChunkLimits, EmbedOptions, RequestError, RoseClient
from rose_client.cli.main import app
from rose_ensemble.server_process import Endpoints
from tests.support.bge_m3 import assert_flag_embedding, flag_embedding, make_m3
from tests.support.cases import HARBOUR
from tests.support.gateways import running_gateway
from tests.support.library import HIDDEN, alone, edit_json, library, save_with_library
from tests.support.oracle import Oracle
from tests.support.serving import Serving, serving
from tests.support.vectors import assert_close
from tests.support.wire import RawHttp, text_input

_TEXTS = [HARBOUR, "tea", "", "stone " * 60, "tea"]
_CALIBRATION = ["a violin", "a tractor in a field", "stone " * 20, "tea and a pot of it", "", "[CLS] tea"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """Normalized, trained to be cut to 8 and 16, calibrated by the command."""
    place = tmp_path_factory.mktemp("checkpoint")
    saved = save_with_library(place, minilm)
    edit_json(saved / "config.json", matryoshka_dimensions=[8, 16, HIDDEN])
    (place / "texts").write_text("\n".join(_CALIBRATION))
    done = CliRunner().invoke(app, ["calibrate", str(saved), str(place / "texts"), "--device=cpu"])
    assert done.exit_code == 0, done.output
    assert "rose_int8_ranges.json" in done.output
    return saved


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Serving]:
    options = (f"--checkpoint={folder}", "--name=codes", "--probe-interval=600")
    with serving(tmp_path_factory.mktemp("serve"), *options) as found:
        yield found


def _vectors(folder: Path, texts: list[str], dimensions: int | None) -> npt.NDArray[np.float32]:
    bare = library(folder)
    del bare[-1]
    return alone(bare, texts, truncate_dim=dimensions, normalize_embeddings=True)


@pytest.mark.slow
async def test_requests_that_differ_in_outputs_share_batches(served: Serving, folder: Path) -> None:
    ways = [
        EmbedOptions(),
        EmbedOptions(outputs=["int8"]),
        EmbedOptions(outputs=["binary", "float"], dimensions=16),
        EmbedOptions(outputs=["int8", "binary"], dimensions=8),
        EmbedOptions(outputs=["binary"], bit_order="lsb"),
        EmbedOptions(outputs=["float"], dimensions=16),
        EmbedOptions(outputs=["float"], dimensions=16, renormalize=False),
    ]
    async with AsyncRoseClient(served.grpc, model="codes") as client:
        answers = await asyncio.gather(*(client.embed_with_counts(_TEXTS, **way) for way in ways * 5))
    for number, answer in enumerate(answers):
        way = ways[number % len(ways)]
        dimensions = way.get("dimensions")
        expected = _vectors(folder, _TEXTS, dimensions)
        if "renormalize" in way:
            expected = alone(library(folder), _TEXTS, truncate_dim=dimensions)
        assert set(answer.arrays) == set(way.get("outputs", ["float"]))
        if "float" in answer.arrays:
            assert_close(answer.vectors, expected)
        if "int8" in answer.arrays:
            calibration = _vectors(folder, _CALIBRATION, dimensions)
            ranges = np.stack([calibration.min(0), calibration.max(0)])
            off = np.abs(answer.int8.astype(int) - quantize_embeddings(expected, "int8", ranges=ranges).astype(int))
            assert answer.int8.dtype == np.int8
            assert off.max() <= 1
            assert (off != 0).mean() < 0.03
        if "binary" in answer.arrays:
            bits = np.unpackbits(answer.binary, axis=-1, bitorder="little" if "bit_order" in way else "big")
            sure = np.abs(expected) > 1e-5
            assert (bits == (expected > 0))[sure].all()


def test_a_plain_client_gets_what_the_parameter_says(server: Endpoints, oracle: Oracle) -> None:
    """Outputs that were not asked for are absent, named by the client or not."""
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for named in (None, ["EMBEDDING_BINARY", "EMBEDDING", "TOKEN_EMBEDDING"]):
            wanted = None if named is None else [grpcclient.InferRequestedOutput(name) for name in named]
            texts = text_input(grpcclient, ["tea", HARBOUR], (2, 1))
            result = client.infer("embed", [texts], outputs=wanted, parameters={"outputs": "binary"})
            assert result.as_numpy("EMBEDDING_BINARY").shape == (2, 1, 48)
            assert result.as_numpy("EMBEDDING") is None
            assert result.as_numpy("TOKEN_EMBEDDING") is None
            expected = np.packbits(oracle.vectors(["tea", HARBOUR]) > 0, axis=-1)
            assert (result.as_numpy("EMBEDDING_BINARY")[:, 0] != expected).sum() <= 1
            plain = client.infer("embed", [texts], outputs=wanted)
            assert plain.as_numpy("EMBEDDING_BINARY") is None
            assert_close(plain.as_numpy("EMBEDDING")[:, 0], oracle.vectors(["tea", HARBOUR]))


def test_codes_in_json(raw_http: RawHttp, oracle: Oracle) -> None:
    status, answer = raw_http.generate(TEXT="tea", parameters={"outputs": "binary", "bit_order": "lsb"})
    assert status == 200, answer
    bits = np.unpackbits(np.array(answer["EMBEDDING_BINARY"], np.uint8), bitorder="little")
    assert (bits != (oracle.vector("tea") > 0)).sum() <= 1
    assert "EMBEDDING" not in answer


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (EmbedOptions(outputs=["int8"], normalize=False, dimensions=8), None),
        (EmbedOptions(outputs=["int8"], dimensions=9), "'dimensions' is 9"),
        (EmbedOptions(bit_order="big"), "'bit_order' is 'big', not one of ['msb', 'lsb']"),
    ],
)
def test_refusals(served: Serving, options: EmbedOptions, words: str | None) -> None:
    with RoseClient(served.grpc, model="codes") as client:
        if words is None:
            assert client.embed_with_counts(["tea"], **options).int8.shape == (1, 8)
            return
        with pytest.raises(RequestError) as refused:
            client.embed_with_counts(["tea"], **options)
    assert refused.value.status == "INVALID_ARGUMENT"
    assert words in refused.value.message


@pytest.mark.slow
def test_the_heads_of_bge_m3_in_one_pass(tmp_path: Path) -> None:
    model = make_m3(tmp_path / "m3")
    texts = ["tea tea pot", "harbour", "", "a stone wall stone rope stone"]
    (tmp_path / "serve").mkdir()
    with serving(tmp_path / "serve", f"--checkpoint={tmp_path / 'm3'}", "--name=m3", "--probe-interval=600") as served:
        with grpcclient.InferenceServerClient(served.grpc) as plain:
            for shape in ((4, 1), (1, 4)):
                sent, parameters = text_input(grpcclient, texts, shape), {"outputs": "float,sparse,token"}
                result = plain.infer("m3", [sent], parameters=parameters)
                assert result.as_numpy("SPARSE_LENGTHS").shape == shape
                assert result.as_numpy("TOKEN_EMBEDDING_LENGTHS").shape == shape
                names = [output.name for output in result.get_response().outputs]
                arrays = {name: result.as_numpy(name) for name in names if name != "TOKEN_COUNT"}
                arrays["EMBEDDING"] = arrays["EMBEDDING"].reshape(1, 4, -1)
                made = {name: values.ravel() if "LENGTHS" in name else values[0] for name, values in arrays.items()}
                assert_flag_embedding(made, tmp_path / "m3", model, texts)
        with RoseClient(served.grpc, model="m3", limits=ChunkLimits(max_texts=3)) as client:
            answer = client.embed_with_counts(texts, outputs=["sparse", "token"])
            assert set(answer.arrays) == {"sparse", "token"}
            for text, sparse, vectors in zip(texts, answer.sparse, answer.tokens, strict=True):
                _, weights, expected = flag_embedding(tmp_path / "m3", model, text)
                assert sparse.index.tolist() == sorted(weights)
                assert np.allclose(sparse.weight, [weights[token] for token in sorted(weights)], atol=1e-5)
                assert_close(vectors, expected)
        with running_gateway(served.grpc) as gateway:
            weighed, tokens = (gateway.post(path, json={"inputs": texts}) for path in ("/embed_sparse", "/embed_all"))
            for text, sparse, vectors in zip(texts, weighed.json(), tokens.json(), strict=True):
                _, weights, expected = flag_embedding(tmp_path / "m3", model, text)
                assert [entry["index"] for entry in sparse] == sorted(weights)
                assert np.allclose(
                    [entry["value"] for entry in sparse], [weights[i] for i in sorted(weights)], atol=1e-5
                )
                assert_close(vectors, expected)


def test_token_vectors_of_a_common_checkpoint(server: Endpoints, oracle: Oracle) -> None:
    with RoseClient(server.grpc) as client:
        answer = client.embed_with_counts([HARBOUR, "tea"], outputs=["token", "float"])
        for text, vectors in zip([HARBOUR, "tea"], answer.tokens, strict=True):
            assert_close(vectors, oracle.model.encode(text, output_value="token_embeddings").cpu().numpy())
        assert_close(answer.vectors, oracle.vectors([HARBOUR, "tea"]))
        with pytest.raises(RequestError, match=r"has sparse, but this checkpoint has no sparse_linear\.pt"):
            client.embed_with_counts(["tea"], outputs=["sparse"])
        with pytest.raises(RequestError, match="which chunks of documents do not have"):
            client.contextual([["tea", "pot"]], late_chunking=True, outputs=["token"])


def test_a_checkpoint_without_ranges_refuses_int8(server: Endpoints) -> None:
    with (
        RoseClient(server.grpc) as client,
        pytest.raises(RequestError, match=r"no rose_int8_ranges\.json; `rose calibrate` makes one"),
    ):
        client.embed_with_counts(["tea"], outputs=["float", "int8"])


def test_an_unknown_output_is_refused_with_the_known(raw_http: RawHttp) -> None:
    status, answer = raw_http.infer(["tea"], [1, 1], outputs="ubinary")
    assert status == 400
    assert "'ubinary' is not one of ['float', 'int8', 'binary'" in answer["error"]
