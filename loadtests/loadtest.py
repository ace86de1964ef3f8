"""Load tests of a whole server, with reports.

    python loadtests/loadtest.py mix                          # short: our own server on the CPU, rising rates and a day
    python loadtests/loadtest.py run --plan day:360x200 --host localhost:8001 --metrics http://localhost:8002/metrics
    python loadtests/loadtest.py capacity --p99-ms 50         # the highest rate whose p99 is held
    python loadtests/loadtest.py compare --other http://localhost:7997/v1/embeddings --other-model minilm

Without `--host`, our own server is started with the default model. Reports go to `--output` (default
`build/loadtest`): `NAME.html` needs nothing beside it, `NAME.json` has its figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environment import describe_machine, write_result
from traffic.capacity import find_capacity
from traffic.report import as_html, as_json, columns
from traffic.running import Run, Target, embedded_server, run_plan
from traffic.samples import ONLINE, Summary, summarize, totals

MIX = "5x2,12x5,12x10,12x20,12x40,12x60,20x5+bulk,20x10+bulk,20x20+bulk,day:48x20"
_TRIAL_SECONDS = 15


def main() -> None:
    """Do what the command line asks for."""
    args = _arguments()
    with _target(args) as target:
        if args.command == "capacity":
            _capacity(args, target)
        elif args.command == "compare":
            _compare(args, target)
        else:
            run = _run(args, target, MIX if args.command == "mix" else args.plan)
            _report(args, run, args.command, f"Load test of {target.model}")
            failed = sum(sample.outcome == "failed" for sample in run.samples)
            if failed:
                sys.exit(f"{failed} requests failed")


def _capacity(args: argparse.Namespace, target: Target) -> None:
    suffix = "+bulk" if args.with_bulk else ""

    def measure(rate: float) -> Summary:
        run = _run(args, target, f"{_TRIAL_SECONDS}x{rate:g}{suffix}")
        summary = summarize((s for s in run.samples if s.traffic == ONLINE), _TRIAL_SECONDS)
        print(
            f"{rate:8.1f} queries/s: p99 {summary.p99_ms:8.1f} ms, {summary.answered} of {summary.requests} answered",
            flush=True,
        )
        return summary

    measure(args.start / 4)  # not counted: the first requests meet a cold server
    rate, trials = find_capacity(measure, args.p99_ms, args.start)
    print(f"{rate:.1f} queries/s hold a p99 of {args.p99_ms:g} ms{' beside bulk jobs' if args.with_bulk else ''}")
    result = {"benchmark": "capacity", "p99_ms": args.p99_ms, "queries_per_s": rate, "with_bulk": args.with_bulk}
    result |= {"target": asdict(target), "trials": [asdict(trial) for trial in trials], "machine": describe_machine()}
    write_result(args.output / "capacity.json", result)


def _compare(args: argparse.Namespace, target: Target) -> None:
    other = Target(args.other_kind, args.other, args.other_model)
    runs = {"rose": _run(args, target, args.plan), args.other_name: _run(args, other, args.plan)}
    machine = describe_machine()
    for traffic in totals(runs["rose"].samples, runs["rose"].plan):
        print(
            f"\n{traffic}\n" + columns(*((name, totals(run.samples, run.plan)[traffic]) for name, run in runs.items()))
        )
    for name, run in runs.items():
        _report(args, run, f"compare-{name}", f"{name}, in a comparison", machine)


def _run(args: argparse.Namespace, target: Target, plan: str) -> Run:
    return run_plan(target, plan, bulk_jobs=args.bulk_jobs, timeout=args.timeout, processes=args.processes)


def _report(args: argparse.Namespace, run: Run, name: str, title: str, machine: dict[str, Any] | None = None) -> None:
    machine = machine or describe_machine()
    write_result(args.output / f"{name}.json", as_json(run, machine))
    page = args.output / f"{name}.html"
    page.write_text(as_html(run, machine, title))
    for traffic, found in totals(run.samples, run.plan).items():
        print(
            f"{traffic:<7} {found.answered:,} of {found.requests:,} answered, {found.refused} refused, "
            f"{found.failed} failed; p50 {found.p50_ms:.1f} p90 {found.p90_ms:.1f} p99 {found.p99_ms:.1f} ms; "
            f"{found.texts_per_s:.1f} texts/s, {found.tokens_per_s:,.0f} tokens/s"
        )
    print(f"report: {page}")


@contextmanager
def _target(args: argparse.Namespace) -> Iterator[Target]:
    if args.host:
        yield Target(args.kind, args.host, args.model, args.metrics)
        return
    args.output.mkdir(parents=True, exist_ok=True)
    with (args.output / "server.log").open("wb") as log, embedded_server(log) as target:
        yield target


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("mix", "run", "capacity", "compare"))
    parser.add_argument("--plan", default="20x5,20x5+bulk", help="for run and compare; see traffic/plan.py")
    parser.add_argument("--host", help="host:port, or the URL of /v1/embeddings; default: our own server")
    parser.add_argument("--kind", default="grpc", help="of --host: grpc, http or openai")
    parser.add_argument("--model", default="embed")
    parser.add_argument("--metrics", help="URL of the metrics page of --host")
    parser.add_argument("--bulk-jobs", type=int, default=2, help="requests of 100 texts under way")
    parser.add_argument("--timeout", type=float, default=30.0, help="of a request, in seconds")
    parser.add_argument("--processes", type=int, default=1, help="of the load generator")
    parser.add_argument("--output", type=Path, default=Path("build/loadtest"))
    parser.add_argument("--p99-ms", type=float, default=50.0, help="for capacity: to be held")
    parser.add_argument("--start", type=float, default=20.0, help="for capacity: first rate")
    parser.add_argument("--with-bulk", action="store_true", help="for capacity: beside bulk jobs")
    parser.add_argument("--other", help="for compare: its host:port or URL")
    parser.add_argument("--other-kind", default="openai")
    parser.add_argument("--other-model", default="default")
    parser.add_argument("--other-name", default="other", help="heads its column")
    args = parser.parse_args()
    if args.command == "compare" and not args.other:
        parser.error("compare needs --other")
    return args


if __name__ == "__main__":
    main()
