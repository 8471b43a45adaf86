"""`python -m benchmarks NAME`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(help="One question each, answered in ratios to plain Inductor.", no_args_is_help=True)
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to FILE as well.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw them (.png, .svg; needs matplotlib).")]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes: shows that it runs, the figures mean nothing.")]


@app.command()
def boundary() -> None:
    """What does handing an async tensor to a compiled region cost, per call?"""
    from benchmarks.boundary import main

    main()


@app.command()
def breaks(quick: Quick = False) -> None:
    """What do the graph breaks of `Work` handles cost under plain Inductor, per call?"""
    from benchmarks.breaks import main

    main(quick)


@app.command()
def overlap(
    json_file: Json = None,
    plot: Plot = None,
    quick: Quick = False,
    only: Annotated[str, typer.Option(metavar="NAMES", help="Programs, separated by commas.")] = "",
    link: Annotated[Literal["simulated", "veth"], typer.Option(help="veth: rate-limited, between namespaces.")] = (
        "simulated"
    ),
    rounds: Annotated[int, typer.Option(help="Timed calls of each variant, interleaved.")] = 15,
) -> None:
    """How much communication is exposed, in programs that have independent work beside it?"""
    from benchmarks.overlap.run import main

    main(json_file, plot, quick, only.split(",") if only else None, link, rounds)


@app.command("compile_time")
def compile_time(
    json_file: Json = None,
    plot: Plot = None,
    quick: Quick = False,
    layers: Annotated[int, typer.Option(help="Of the Llama.")] = 32,
    training: Annotated[bool, typer.Option(help="Compile forward and backward, or inference.")] = True,
) -> None:
    """Which share of Inductor's compile time do our passes take, and how do they grow with the graph?"""
    from benchmarks.compile_time import main

    main(json_file, plot, quick, layers, training)


if __name__ == "__main__":
    app()
