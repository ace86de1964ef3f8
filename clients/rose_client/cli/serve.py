"""`rose serve`: write the pipelines, start tritonserver, say where it listens."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rose_backend.errors import RoseError
from rose_client.cli.console import err, errors_to_exit, out, sigterm_unwinds
from rose_client.cli.gateway import KeyFileOption
from rose_client.cli.gateway_process import GatewayProcess, require_packages
from rose_client.cli.pipelines import (
    AttentionOption,
    BudgetOption,
    DeviceOption,
    DtypeOption,
    LanesOption,
    MatryoshkaOption,
    QueuedRequestsOption,
    QueuedTokensOption,
    TokenizersOption,
    chosen,
    served_as,
)
from rose_client.cli.repository import RepositoryOption, open_repository
from rose_ensemble.health import HealthPolicy
from rose_ensemble.json_logs import DEFAULT_LEVEL, LEVEL_VARIABLE, LEVELS
from rose_ensemble.pipeline import Pipeline
from rose_ensemble.server_process import Endpoints, ServerProcess
from rose_ensemble.signals import StopSignals, held_signals
from rose_ensemble.supervisor import Supervisor
from rose_ensemble.tritonserver import find_server


def serve(
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(help="Checkpoint folder; may be given several times. Default: what the repository holds."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Model name of the checkpoint in the same place; default: its folder's."),
    ] = None,
    repository: RepositoryOption = None,
    device: DeviceOption = None,
    tokenizers: TokenizersOption = None,
    dtype: DtypeOption = None,
    attention: AttentionOption = None,
    token_budget: BudgetOption = None,
    max_queued_tokens: QueuedTokensOption = None,
    max_queued_requests: QueuedRequestsOption = None,
    lanes: LanesOption = None,
    matryoshka: MatryoshkaOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8002,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Answer the routes of OpenAI, Cohere and others too: see `rose gateway`.")
    ] = False,
    gateway_port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8080,
    api_key_file: KeyFileOption = None,
    log_level: Annotated[
        str,
        typer.Option(
            envvar=LEVEL_VARIABLE,
            help=f"Of the model processes: {', '.join(LEVELS)}. JSON lines on the standard error.",
        ),
    ] = DEFAULT_LEVEL,
    probe_interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between probes of each model; one that fails is reloaded.")
    ] = HealthPolicy.interval,
) -> None:
    """Serve checkpoints until stopped. Without any, all-MiniLM-L6-v2 as the model `embed`.

    Ends with status 0 when a signal asked for it and what was begun is answered, with status 1 when a model failed and
    cannot be brought back, else with the server's own.
    """
    if log_level not in LEVELS:
        raise typer.BadParameter(f"--log-level is {log_level!r}, not one of {', '.join(LEVELS)}")
    with errors_to_exit(RoseError), sigterm_unwinds(), ExitStack() as running:
        if gateway:
            require_packages()
        store = open_repository(repository)
        pipelines = [
            served_as(
                pipeline,
                device,
                tokenizers,
                dtype=dtype,
                attention=attention,
                token_budget=token_budget,
                max_queued_tokens=max_queued_tokens,
                max_queued_requests=max_queued_requests,
                lanes=lanes,
                matryoshka=matryoshka,
            )
            for pipeline in chosen(store, checkpoint or [], name or [])
        ]
        pipelines = [store.add(pipeline) for pipeline in pipelines]
        endpoints = Endpoints.free(host, http_port, grpc_port, metrics_port)
        names = [pipeline.name for pipeline in pipelines]
        found = find_server()
        found = replace(found, environment={**found.environment, LEVEL_VARIABLE: log_level})
        with held_signals():
            server = running.enter_context(ServerProcess(found, store.folder, names, endpoints))
        supervisor = Supervisor(server, pipelines, HealthPolicy(interval=probe_interval))
        front, address = None, None
        with err.status(f"starting {', '.join(names)}"):
            server.wait_until_ready()
            supervisor.wait_until_answering()
            if gateway:
                with held_signals():
                    front = running.enter_context(GatewayProcess(server, gateway_port, api_key_file))
                address = front.wait_until_listening()
        with StopSignals() as signals:
            _announce(endpoints, pipelines, address)
            status = supervisor.run(signals)
        if front is not None:
            front.require_success()
        raise typer.Exit(status)


def _announce(endpoints: Endpoints, pipelines: list[Pipeline], gateway: str | None) -> None:
    model, scores = pipelines[0].name, pipelines[0].scores
    out.print(f"ready: {', '.join(pipeline.name for pipeline in pipelines)}", style="green")
    out.print(f"  gRPC     {endpoints.grpc}", markup=False)
    out.print(f"  HTTP     http://{endpoints.http}", markup=False)
    out.print(f"  metrics  http://{endpoints.metrics}/metrics", markup=False)
    if gateway is not None:
        out.print(f"  gateway  {gateway}", markup=False)
    tensors = ("QUERY", "DOCUMENT") if scores else ("TEXT",)
    inputs = [f'{{"name":"{name}","datatype":"BYTES","shape":[1,1],"data":["hello"]}}' for name in tensors]
    body = f'{{"inputs":[{",".join(inputs)}]}}'
    # Without the header curl calls it a form, which Triton 24.10 parses, and dies of if it is 4 MiB long.
    header = "-H 'Content-Type: application/json'"
    out.print(f"try:\n  curl -s http://{endpoints.http}/v2/models/{model}/infer {header} -d '{body}'", markup=False)
    if scores:
        snippet = (
            f'import rose_client as r; print(r.RoseClient("{endpoints.grpc}", "{model}").rerank("hello", ["hello"]))'
        )
    else:
        snippet = (
            "import numpy as np, tritonclient.grpc as g; "
            't = g.InferInput("TEXT", [1, 1], "BYTES"); t.set_data_from_numpy(np.array([[b"hello"]], dtype=object)); '
            f'print(g.InferenceServerClient("{endpoints.grpc}").infer("{model}", [t]).as_numpy("EMBEDDING")[0, 0, :4])'
        )
    out.print(f"  python -c '{snippet}'", markup=False)
