"""Load tests of a whole server, with reports.

    python loadtests/loadtest.py mix --seconds 60             # bulk jobs alone, then a day of all traffic in a minute
    python loadtests/loadtest.py mix --seconds 360 --peak 200 --score-peak 2 --checkpoint /models/m
    python loadtests/loadtest.py run --plan day:360x200 --host localhost:8001 --metrics http://localhost:8002/metrics
    python loadtests/loadtest.py capacity --p99-ms 50         # the highest rate whose p99 is held
    python loadtests/loadtest.py compare --other infinity minilm http://localhost:7997/v1/embeddings
    python loadtests/loadtest.py report build/loadtest/mix.json   # the page anew, of a run that was written

Without `--host`, our own server is started (`rose serve`): the default model, a `--checkpoint`, or a random one of
Qwen3-Embedding-0.6B's geometry (`--tokenizer`, made by `qwen_vocabulary.py`). `--reranker` scores documents, else
the gateway does. Reports go to `--output` (`build/loadtest`): `NAME.html` needs nothing beside it, `NAME.json` has
the figures, `NAME-samples.json` every request.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environment import describe_machine, write_result
from random_checkpoint import write_qwen3_embedding
from traffic.capacity import find_capacity
from traffic.mix import mix_of
from traffic.own_server import Served, own_server
from traffic.report import as_html, as_json, columns, figures, run_of
from traffic.running import Run, ScoreTarget, Target, run_plan
from traffic.samples import ONLINE, Summary, read_samples, totals, write_samples
from traffic.texts import DOCUMENT_WORDS

_RATE_SECONDS = 12


def main() -> None:
    """Do what the command line asks for."""
    args = _arguments()
    if args.command == "report":
        _render(args)
        return
    with _target(args) as target:
        if args.command == "capacity":
            _capacity(args, target)
        elif args.command == "compare":
            _compare(args, target)
        else:
            run = _run(args, target, mix_plan(args) if args.command == "mix" else args.plan)
            _report(args, run, args.command, f"Load test of {target.model}")
            failed = sum(sample.outcome == "failed" for sample in run.samples)
            if failed:
                sys.exit(f"{failed} requests failed")


def mix_plan(args: argparse.Namespace) -> str:
    """Warming up, bulk jobs alone, queries at given rates, and the day."""
    rates = [f"{_RATE_SECONDS}x{rate}" for rate in args.rates.split(",") if rate]
    score = f"+score{args.score_peak:g}"
    parts = [f"warm:{args.warm_seconds:g}x{args.peak / 2:g}+bulk{score}", f"{args.lone_seconds:g}x0+bulk", *rates]
    return ",".join([*parts, f"day:{args.seconds:g}x{args.peak:g}{score}"])


def _render(args: argparse.Namespace) -> None:
    found = json.loads(args.result.read_text())
    run = run_of(found, read_samples(_samples_beside(args.result)))
    page = args.result.with_suffix(".html")
    page.write_text(as_html(run, found["machine"], f"Load test of {run.target.model}"))
    print(f"report: {page}")


def _samples_beside(result: Path) -> Path:
    return result.with_name(f"{result.stem}-samples.json")


def _capacity(args: argparse.Namespace, target: Target) -> None:
    suffix = "+bulk" if args.with_bulk else ""

    def measure(rate: float) -> Summary:
        run = _run(args, target, f"{args.trial_seconds:g}x{rate:.3f}{suffix}")
        summary = totals(run.samples, run.plan)[ONLINE]
        print(
            f"{rate:8.1f} queries/s: p99 {summary.p99_ms:8.1f} ms, {summary.answered} of {summary.requests} answered",
            flush=True,
        )
        return summary

    measure(args.start / 4)  # not counted: the first requests meet a cold server
    rate, trials = find_capacity(measure, args.p99_ms, args.start, highest=args.highest)
    print(f"{rate:.1f} queries/s hold a p99 of {args.p99_ms:g} ms{' beside bulk jobs' if args.with_bulk else ''}")
    result = {"benchmark": "capacity", "p99_ms": args.p99_ms, "queries_per_s": rate, "with_bulk": args.with_bulk}
    result |= {"target": asdict(target), "machine": describe_machine()}
    result["trials"] = [{"rate": trial.rate, "summary": figures(trial.summary), "held": trial.held} for trial in trials]
    write_result(args.output / "capacity.json", result)


def _compare(args: argparse.Namespace, target: Target) -> None:
    targets = {"rose": target} | {name: Target("openai", url, model) for name, model, url in args.other}
    runs = {name: _run(args, each, args.plan) for name, each in targets.items()}
    machine = describe_machine()
    found = {name: totals(run.samples, run.plan) for name, run in runs.items()}
    for name, _, _ in args.other:
        for traffic in found["rose"]:
            print(f"\n{traffic}\n{columns(('rose', found['rose'][traffic]), (name, found[name][traffic]))}")
    for name, run in runs.items():
        _report(args, run, f"compare-{name}", f"{name}, in a comparison", machine)


def _run(args: argparse.Namespace, target: Target, plan: str) -> Run:
    return run_plan(target, plan, bulk_jobs=args.bulk_jobs, timeout=args.timeout, processes=args.processes)


def _report(args: argparse.Namespace, run: Run, name: str, title: str, machine: dict[str, Any] | None = None) -> None:
    machine = machine or describe_machine()
    result = args.output / f"{name}.json"
    write_result(result, as_json(run, machine))
    write_samples(_samples_beside(result), run.samples)
    for traffic, found in totals(run.samples, run.plan).items():
        print(
            f"{traffic:<7} {found.answered:,} of {found.requests:,} answered, {found.refused} refused, "
            f"{found.failed} failed; p50 {found.p50_ms:.1f} p90 {found.p90_ms:.1f} p99 {found.p99_ms:.1f} ms; "
            f"{found.texts_per_s:.1f} texts/s, {found.tokens_per_s:,.0f} tokens/s"
        )
    mix = mix_of(run.samples, run.plan)
    if mix is not None:
        print("the day alone:")
        for traffic, found in mix.classes.items():
            print(f"  {traffic:<6} {found.requests:,} requests, p99 {found.p99_ms:.1f} ms, {found.failed} failed")
        if mix.kept is not None:
            rates = f"{mix.bulk_alone:.1f} texts/s alone, {mix.bulk_beside:.1f} beside the others"
            print(f"  bulk   {rates}: {mix.kept:.1%} kept")
    page = result.with_suffix(".html")
    try:
        page.write_text(as_html(run, machine, title))
        print(f"report: {page}")
    except ModuleNotFoundError as missing:
        print(f"no page: {missing.name} is missing; where it is not, `loadtest.py report {result}` makes it")


@contextmanager
def _target(args: argparse.Namespace) -> Iterator[Target]:
    if args.host:
        score = None
        if args.score_host:
            score = ScoreTarget(args.score_kind, args.score_host, args.score_model, args.document_words)
        yield Target(args.kind, args.host, args.model, args.metrics, score)
        return
    args.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, (args.output / "server.log").open("wb") as log:
        checkpoint = args.checkpoint
        if args.tokenizer is not None:
            checkpoint = write_qwen3_embedding(Path(scratch) / "embed", args.tokenizer)
        served = Served(checkpoint, args.reranker, args.document_words, args.serve)
        with own_server(served, args.kind, log) as target:
            yield target


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("mix", "run", "capacity", "compare", "report"))
    parser.add_argument("result", type=Path, nargs="?", help="for report: the JSON of a run")
    parser.add_argument("--plan", default="20x5,20x5+bulk", help="for run and compare; see traffic/plan.py")
    parser.add_argument("--host", help="host:port, or the URL of /v1/embeddings; default: our own server")
    parser.add_argument("--kind", default="grpc", help="of --host: grpc, http or openai")
    parser.add_argument("--model", default="embed")
    parser.add_argument("--metrics", help="URL of the metrics page of --host")
    parser.add_argument("--score-kind", default="rerank", help="of --score-host: grpc, http or rerank")
    parser.add_argument("--score-host", help="beside --host: host:port of a reranker, or the URL of /v1/rerank")
    parser.add_argument("--score-model", default="rerank", help="its name there")
    parser.add_argument("--document-words", type=int, default=DOCUMENT_WORDS, help="of every document to be scored")
    parser.add_argument("--checkpoint", type=Path, help="folder that our own server embeds with")
    parser.add_argument("--tokenizer", type=Path, help="instead: of a random checkpoint of Qwen3-Embedding-0.6B's size")
    parser.add_argument("--reranker", type=Path, help="folder that our own server scores with")
    parser.add_argument("--serve", action="append", default=[], help="option of rose serve, e.g. --serve=--lanes=off")
    parser.add_argument("--seconds", type=float, default=60.0, help="for mix: of the day")
    parser.add_argument("--peak", type=float, default=20.0, help="for mix: queries a second in the busiest hour")
    parser.add_argument("--score-peak", type=float, default=1.0, help="for mix: scoring requests a second, likewise")
    parser.add_argument("--rates", default="", help="for mix: queries a second before the day, e.g. 5,10,20")
    parser.add_argument("--warm-seconds", type=float, default=10.0, help="for mix: of all traffic, not counted")
    parser.add_argument("--lone-seconds", type=float, default=15.0, help="for mix: of bulk jobs alone")
    parser.add_argument("--bulk-jobs", type=int, default=2, help="requests of 100 texts under way")
    parser.add_argument("--timeout", type=float, default=30.0, help="of a request, in seconds")
    parser.add_argument("--processes", type=int, default=1, help="of the load generator")
    parser.add_argument("--output", type=Path, default=Path("build/loadtest"))
    parser.add_argument("--p99-ms", type=float, default=50.0, help="for capacity: to be held")
    parser.add_argument("--start", type=float, default=20.0, help="for capacity: first rate")
    parser.add_argument("--highest", type=float, default=1e5, help="for capacity: rate to stop at")
    parser.add_argument("--trial-seconds", type=float, default=15.0, help="for capacity: of each rate")
    parser.add_argument("--with-bulk", action="store_true", help="for capacity: beside bulk jobs")
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        nargs=3,
        metavar=("NAME", "MODEL", "URL"),
        help="for compare, once for each other server: what heads its column, its model, its /v1/embeddings",
    )
    args = parser.parse_args()
    if args.command == "compare" and not args.other:
        parser.error("compare needs --other")
    if args.command == "report" and args.result is None:
        parser.error("report needs the JSON of a run")
    if args.checkpoint and args.tokenizer:
        parser.error("give --checkpoint or --tokenizer")
    return args


if __name__ == "__main__":
    main()
