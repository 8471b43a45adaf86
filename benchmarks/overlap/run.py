"""Starts the ranks, turns their times into ratios, and shows them."""

import json
import math
import platform
import statistics
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.overlap import links, show, veth
from benchmarks.overlap.measure import ALONE, WAYS, measure
from benchmarks.overlap.programs import PROGRAMS
from tp_compile_pass.testing import RankPool

WORLD = 2


def main(
    json_file: Path | None, plot: Path | None, quick: bool, only: list[str] | None, link: str, rounds: int
) -> None:
    console = Console(width=max(Console().width, 140))
    results: dict[str, Any] = {
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "ranks": WORLD,
        "link": link,
        "rounds": rounds,
        "quick": quick,
        "programs": {},
    }
    if link == "veth" and (reason := veth.why_not()):
        console.print(f"skipped: no link between namespaces here, {reason}")
        return
    with veth.link() if link == "veth" else nullcontext(links.SIMULATED) as used:
        env = dict(used.env)
        with RankPool(WORLD, used.backend, setup=used.setup, timeout=600, env=env) as ranks:
            for name in only or PROGRAMS:
                answers = ranks.run(measure, name, quick, rounds, used)
                results["programs"][name] = figures(name, answers)
                console.print(show.table(name, results["programs"][name]))
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1) + "\n")
    if plot is not None:
        show.plot(results, plot)


def figures(name: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios from each rank's times; in a round, a way takes as long as its slowest rank. Beside medians the best
    rounds: what else runs on a machine only adds to a time."""
    times = {
        way: [max(rank) for rank in zip(*(answer["times"][way] for answer in answers), strict=True)]
        for way in answers[0]["times"]
    }
    median = {way: statistics.median(rounds) for way, rounds in times.items()}
    compute, communication = median[ALONE["inductor"]], median["communication alone"]
    bound = max(compute, communication)
    best = {way: min(rounds) for way, rounds in times.items()}
    best_bound = max(best[ALONE["inductor"]], best["communication alone"])
    plain = median["inductor"] - compute if "inductor" in median else math.nan
    peak = answers[0]["peaks"]
    ways: dict[str, Any] = {}
    for way in WAYS:
        if way not in times:
            ways[way] = {"failed": answers[0]["failed"][way]}
            continue
        low, _, high = statistics.quantiles(times[way], n=4)
        exposed = median[way] - median[ALONE["eager" if way == "eager" else "inductor"]]
        ways[way] = {
            "ms": median[way] * 1e3,
            "spread": (high - low) / median[way],
            "of bound": median[way] / bound,
            "best ms": best[way] * 1e3,
            "best of bound": best[way] / best_bound,
            "of inductor": _paired(times, way, "inductor"),
            "of eager": _paired(times, way, "eager"),
            "exposed ms": exposed * 1e3,
            "exposed of inductor": exposed / plain if plain else math.nan,
            "peak of inductor": peak[way] / peak["inductor"] if "inductor" in peak else math.nan,
        }
    return {
        "what": PROGRAMS[name].what,
        "compute ms": compute * 1e3,
        "communication ms": communication * 1e3,
        "bound ms": bound * 1e3,
        "gbps": answers[0]["bandwidth"] * 8e-9,
        "ways": ways,
        "seconds": times,
    }


def _paired(times: dict[str, list[float]], way: str, base: str) -> float:
    """The median over the rounds of the ratio in one round; NaN where the base failed."""
    if base not in times:
        return math.nan
    return statistics.median(a / b for a, b in zip(times[way], times[base], strict=True))
