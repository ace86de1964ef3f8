"""`rose`: serve checkpoints, embed, rerank and search texts, look after repositories, checkpoints and machines."""

from __future__ import annotations

import typer

from rose_client.cli import (
    build_kernels,
    calibrate,
    demo,
    doctor,
    embed,
    gateway,
    inspect,
    repository,
    rerank,
    search,
    serve,
    warm,
)

app = typer.Typer(
    name="rose",
    help="ROSE on Triton: an embedding and reranking server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("gateway")(gateway.gateway)
app.command("embed")(embed.embed)
app.command("rerank")(rerank.rerank)
app.command("search")(search.search)
app.command("demo")(demo.demo)
app.command("warm")(warm.warm)
app.command("inspect")(inspect.inspect)
app.command("calibrate")(calibrate.calibrate)
app.command("doctor")(doctor.doctor)
app.command("build-kernels")(build_kernels.build_kernels)
app.add_typer(repository.app, name="repository")
