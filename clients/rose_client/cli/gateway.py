"""`rose gateway`: HTTP routes of OpenAI, Cohere and others before running servers."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from rose_client.cli.console import errors_to_exit, fail, out, sigterm_unwinds
from rose_ensemble.signals import stop_signals

KEY_VARIABLE = "ROSE_GATEWAY_API_KEY"
_MEBIBYTE = 2**20

KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file", help=f"Keys, one a line, that senders must present; or a single one in ${KEY_VARIABLE}."
    ),
]


def gateway(
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="host:port of a server's gRPC endpoint; several share the work.", show_default="localhost:8001"
        ),
    ] = None,
    metrics_url: Annotated[
        list[str] | None, typer.Option(help="host:port of a server's metrics page, for the status page.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free one.")] = 8080,
    api_key_file: KeyFileOption = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds a request may take.")] = 60.0,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Largest body of a request.")] = 32,
    max_inputs: Annotated[int, typer.Option(min=1, help="Most texts of a request.")] = 4096,
    cache_mib: Annotated[
        int,
        typer.Option(min=0, help="Memory for vectors of texts that came before, of all workers together; 0: none."),
    ] = 0,
    hedge_percent: Annotated[
        float,
        typer.Option(min=0, max=100, help="Most slow chunks, of 100, that go to another server or engine too."),
    ] = 0.0,
    hedge_percentile: Annotated[
        float, typer.Option(min=1, max=99.9, help="Of the times that chunks took lately: longer is slow.")
    ] = 95.0,
    merge: Annotated[
        bool, typer.Option(help="Let small requests with equal options travel together while others are under way.")
    ] = True,
) -> None:
    """Answer the routes of OpenAI, Cohere, Jina and text-embeddings-inference by asking running servers."""
    keys = api_keys(api_key_file)
    # uvicorn ends by sending itself what it was sent, once its handlers are gone.
    with sigterm_unwinds(), ExitStack() as while_serving:
        if signal.SIGHUP in stop_signals():  # of which it makes nothing; `sigterm_unwinds` puts it back
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
        if workers > 1:  # read by prometheus_client when it is imported, in every worker
            folder = tempfile.TemporaryDirectory(prefix="rose-gateway-")
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = while_serving.enter_context(folder)
        try:
            from rose_client.gateway.config import GatewayConfig
            from rose_client.gateway.merging import MergePolicy
            from rose_client.gateway.server import WorkerFailedError, listen, run
            from rose_client.hedging import HedgePolicy
        except ImportError as cause:
            fail(f"the gateway needs its packages: pip install 'rose-on-triton\\[gateway]' ({cause.name} is missing)")
        config = GatewayConfig(
            urls=tuple(url or ("localhost:8001",)),
            timeout=timeout,
            max_body_bytes=max_body_mib * _MEBIBYTE,
            max_inputs=max_inputs,
            api_keys=keys,
            metrics_urls=tuple(metrics_url or ()),
            cache_bytes=cache_mib * _MEBIBYTE // workers,
            hedging=HedgePolicy(hedge_percent / 100, hedge_percentile) if hedge_percent else None,
            merging=MergePolicy() if merge else None,
        )
        try:
            listener = listen(host, port)
        except OSError as cause:
            fail(f"cannot listen on {host}:{port}: {cause.strerror}")
        address = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        with errors_to_exit(WorkerFailedError):
            run(config, listener, workers, lambda: out.print(f"  gateway  http://{address}", markup=False))


def api_keys(path: Path | None) -> tuple[str, ...]:
    """The keys of a file and of the environment."""
    keys: list[str] = []
    if path is not None:
        try:
            keys = [line.strip() for line in path.read_text().splitlines() if line.strip()]
        except OSError as cause:
            fail(f"--api-key-file {path}: {cause.strerror}")
        if not keys:
            fail(f"--api-key-file {path} holds no key")
    if KEY_VARIABLE in os.environ:
        keys.append(os.environ[KEY_VARIABLE])
    if not all(keys):
        fail(f"${KEY_VARIABLE} is empty: unset it, or give a key")
    return tuple(keys)
