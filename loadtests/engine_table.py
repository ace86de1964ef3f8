"""The table and the plot of an engine benchmark's result file.

python loadtests/engine_table.py loadtests/results/engine-h200.json [--plot loadtests/results/engine-h200.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

_COLUMNS = (("auto", "bidirectional"), ("auto", "causal"), ("vllm", "causal"))


def table(result: dict[str, Any]) -> str:
    """A Markdown table: p50 of every shape, and how many times faster than vLLM's causal run."""
    times: dict[str, dict[tuple[str, str], float]] = {}
    for row in result["rows"]:
        if "p50_ms" in row:
            times.setdefault(row["suite"], {})[row["variant"], row["mask"]] = row["p50_ms"]
    lines = [
        "| sequences x tokens | ROSE, bidirectional | ROSE, causal | vLLM, causal | ROSE / vLLM, causal |",
        "|---|---|---|---|---|",
    ]
    for suite, cells in times.items():
        shown = [f"{cells[column]:.2f} ms" if column in cells else "-" for column in _COLUMNS]
        ours, theirs = cells.get(_COLUMNS[1]), cells.get(_COLUMNS[2])
        shown.append(f"{theirs / ours:.1f}x" if ours is not None and theirs is not None else "-")
        lines.append(f"| {suite} | {' | '.join(shown)} |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Latency against tokens, where the saturation point shows as the end of the flat part."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for variant, mask in _COLUMNS:
        points = sorted(
            (row["tokens_per_s"] * row["p50_ms"] / 1e3, row["p50_ms"])
            for row in result["rows"]
            if (row["variant"], row.get("mask")) == (variant, mask) and "p50_ms" in row
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=f"{variant} {mask}")
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="p50, ms", title=result["model"])
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the table; draw the plot if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    result = json.loads(args.result.read_text())
    print(table(result))
    if args.plot is not None:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
