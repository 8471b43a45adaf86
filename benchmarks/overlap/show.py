"""The figures as a table and as a plot."""

from pathlib import Path
from typing import Any

from rich.table import Table


def table(name: str, program: dict[str, Any]) -> Table:
    made = Table(
        title=f"{name}: {program['what']}",
        caption=f"compute {program['compute ms']:.0f} ms, communication {program['communication ms']:.0f} ms, "
        f"bound {program['bound ms']:.0f} ms, link {program['gbps']:.2f} Gbit/s",
        title_justify="left",
        caption_justify="left",
    )
    made.add_column("")
    for column in (
        "ms",
        "spread",
        "of bound",
        "best",
        "of inductor",
        "of eager",
        "exposed ms",
        "vs. inductor",
        "memory",
    ):
        made.add_column(column, justify="right")
    # Less than a tenth of the communication exposed is noise: ratios to it mean nothing.
    exposed = program["ways"]["inductor"].get("exposed ms", 0) - 0.1 * program["communication ms"]
    for way, row in program["ways"].items():
        if "failed" in row:
            made.add_row(way, row["failed"])
            continue
        made.add_row(
            way,
            f"{row['ms']:.1f}",
            f"± {row['spread'] * 50:.0f} %",
            f"{row['of bound']:.2f}",
            f"{row['best of bound']:.2f}",
            f"{row['of inductor']:.2f}",
            f"{row['of eager']:.2f}",
            f"{row['exposed ms']:.1f}",
            f"{100 * (row['exposed of inductor'] - 1):+.0f} %" if exposed > 0 else "-",
            f"{row['peak of inductor']:.2f}",
        )
    return made


def plot(results: dict[str, Any], file: Path) -> None:
    """Bars of time by the bound, a group of bars for each program. Needs matplotlib (extra `bench`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    programs = results["programs"]
    ways = list(next(iter(programs.values()))["ways"])
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.6 * len(programs), 4))
    for i, way in enumerate(ways):
        heights = [program["ways"][way].get("of bound", 0) for program in programs.values()]
        axes.bar([x + (i - (len(ways) - 1) / 2) * 0.16 for x in range(len(programs))], heights, 0.15, label=way)
    axes.axhline(1, color="black", linewidth=1, linestyle="--", label="max(compute, communication)")
    axes.set_xticks(range(len(programs)), list(programs))
    axes.set_ylabel("time / max(compute, communication)")
    axes.set_title(f"torch {results['torch']}, {results['ranks']} ranks, {results['link']} link")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file)
