"""The `tp-compile-pass` command."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help=__doc__, no_args_is_help=True)


@app.callback()
def _commands() -> None:
    """What `torch.compile(model, backend="tp_inductor")` does, shown and explained."""


@app.command()
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the outcomes and the report to FILE as well.")
    ] = None,
) -> None:
    """Run every way of waiting for a collective on two ranks: eager, with inductor, with tp_inductor.

    Takes about a minute, and ends with the report of one model. The exit status is 1 where tp_inductor gives wrong
    numbers, fails, or does worse than inductor.
    """
    from tp_compile_pass.demo.show import demo as run  # torch and the ranks are not needed for --help

    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {json_file.parent}", param_hint="--json")
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(shlex.split(compiler)[0]) is None:
        typer.echo(
            f"Inductor needs a C++ compiler, and there is no {compiler}: install one, or name one in CXX", err=True
        )
        raise typer.Exit(2)
    if not run(Console(), json_file):
        raise typer.Exit(1)
