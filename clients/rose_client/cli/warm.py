"""`rose warm`: have a running server record graphs ahead of its traffic."""

from __future__ import annotations

import re
import statistics
import time
from typing import Annotated

import numpy as np
import tritonclient.grpc as grpcclient
import typer
from tritonclient.utils import InferenceServerException

from rose_client.cli.console import errors_to_exit, out
from rose_client.errors import RequestError

_SHAPE = re.compile(r"(\d+)x(\d+)")
_ROUNDS = 4  # eager, recorded, and two replays to show


def warm(
    shapes: Annotated[list[str], typer.Argument(help="Batches as SEQUENCESxTOKENS, e.g. 1x16 4x128 100x512.")],
    url: Annotated[str, typer.Option(help="host:port of the server's gRPC endpoint.")] = "localhost:8001",
    model: Annotated[str, typer.Option(help="Name of the ensemble.")] = "embed",
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 120.0,
) -> None:
    """Run batches of these shapes on every engine until their graphs are recorded; prints first and last times.

    Use it before traffic comes. The server remembers: after a restart it records them again by itself, while idle.
    """
    wanted = [_parsed(shape) for shape in shapes]
    with errors_to_exit(RequestError), grpcclient.InferenceServerClient(url) as client:
        try:
            engines = _num_engines(client, model)
            for count, length in wanted:
                taken = [_milliseconds(client, model, count, length, timeout) for _ in range(_ROUNDS * engines)]
                first, last = statistics.mean(taken[:engines]), statistics.mean(taken[-engines:])
                out.print(f"{count}x{length}: {first:.2f} ms at first, {last:.2f} ms now")
        except InferenceServerException as cause:
            raise RequestError.of(cause) from cause


def _parsed(shape: str) -> tuple[int, int]:
    found = _SHAPE.fullmatch(shape)
    if found is None or "0" in (found[1], found[2]):
        raise typer.BadParameter(f"{shape!r} is not of the form SEQUENCESxTOKENS, e.g. 4x128")
    return int(found[1]), int(found[2])


def _num_engines(client: grpcclient.InferenceServerClient, model: str) -> int:
    """Instances of the ensemble's last step. Requests one after another go to them in turn."""
    ensemble = client.get_model_config(model, as_json=True)["config"]
    step = ensemble["ensemble_scheduling"]["step"][-1]["model_name"]
    groups = client.get_model_config(step, as_json=True)["config"]["instance_group"]
    return sum(int(group["count"]) for group in groups)


def _milliseconds(
    client: grpcclient.InferenceServerClient, model: str, count: int, length: int, timeout: float
) -> float:
    ids = np.ones((1, count * length), np.int32)
    lengths = np.full((1, count), length, np.int32)
    tensors = []
    for name, values in (("TOKEN_IDS", ids), ("TOKEN_LENGTHS", lengths)):
        tensor = grpcclient.InferInput(name, list(values.shape), "INT32")
        tensor.set_data_from_numpy(values)
        tensors.append(tensor)
    began = time.perf_counter()
    client.infer(model, tensors, client_timeout=timeout)
    return (time.perf_counter() - began) * 1e3
