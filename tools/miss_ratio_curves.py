# SPDX-License-Identifier: Apache-2.0
"""Draws miss-ratio curves of eviction policies as one SVG: `cistern sim` over store sizes, a panel a trace.

python3 tools/miss_ratio_curves.py --cistern build/release/bin/cistern --to docs/miss_ratio.svg TRACE...
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import subprocess

POLICIES = {
    "reuse": "#d62728",
    "lru": "#1f1f1f",
    "slru": "#2ca02c",
    "arc": "#1f77b4",
    "lru2": "#9467bd",
    "lfu": "#ff7f0e",
    "fifo": "#8c8c8c",
}
SIZES = [300, 600, 1_000, 2_000, 3_000, 6_000, 10_000, 20_000, 30_000, 60_000]
WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 300, 50, 30, 70


def miss_ratio(cistern: pathlib.Path, trace: str, policy: str, blocks: int) -> float:
    command = [cistern, "sim", trace, "--blocks", str(blocks), "--policy", policy, "--json"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return 1 - json.loads(run.stdout)["hit_rate"]


def panel(cistern: pathlib.Path, trace: str, left: int) -> list[str]:
    curves = {policy: [miss_ratio(cistern, trace, policy, size) for size in SIZES] for policy in POLICIES}
    low = math.floor(min(map(min, curves.values())) * 10) / 10
    high = math.ceil(max(map(max, curves.values())) * 10) / 10

    def x(size: int) -> float:
        return left + WIDTH * math.log(size / SIZES[0]) / math.log(SIZES[-1] / SIZES[0])

    def y(ratio: float) -> float:
        return TOP + HEIGHT * (high - ratio) / (high - low)

    title = trace if trace.startswith("generated:") else pathlib.Path(trace).stem
    lines = [f'<text x="{left + WIDTH / 2}" y="18" text-anchor="middle">{title}</text>']
    for step in range(round((high - low) * 10) + 1):
        ratio = low + step / 10
        lines.append(f'<path d="M{left} {y(ratio):.1f}h{WIDTH}" stroke="#ddd"/>')
        lines.append(
            f'<text x="{left - 6}" y="{y(ratio) + 4:.1f}" text-anchor="end">{100 * ratio:.0f} %</text>'
        )
    for size in (300, 1_000, 3_000, 10_000, 30_000):
        lines.append(f'<text x="{x(size):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{size:,}</text>')
    for policy, ratios in reversed(curves.items()):
        points = " ".join(f"{x(size):.1f},{y(ratio):.1f}" for size, ratio in zip(SIZES, ratios, strict=True))
        width = 2.5 if policy == "reuse" else 1.3
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{POLICIES[policy]}" stroke-width="{width}"/>'
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cistern", type=pathlib.Path, required=True, help="the program")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="SVG to write")
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="as cistern sim takes them")
    arguments = parser.parse_args()
    width = LEFT + len(arguments.traces) * (WIDTH + GAP)
    height = TOP + HEIGHT + 62
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        "<title>Share of block accesses that miss, by blocks that fit</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for i, trace in enumerate(arguments.traces):
        lines += panel(arguments.cistern, trace, LEFT + i * (WIDTH + GAP))
    for i, (policy, color) in enumerate(POLICIES.items()):
        at = LEFT + 80 * i
        lines.append(f'<path d="M{at} {height - 16}h22" stroke="{color}" stroke-width="2.5"/>')
        lines.append(f'<text x="{at + 28}" y="{height - 12}">{policy}</text>')
    arguments.to.write_text("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
