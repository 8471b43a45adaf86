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


@app.command()
def calibrate(
    device: Annotated[str, typer.Option(help="The type of the device that the programs run on.")] = "cpu",
    backend: Annotated[str, typer.Option(help="The process-group backend; by default the usual one.")] = "",
) -> None:
    """Measure this machine and the connection between its ranks, for `tp.overlap` to decide by.

    Started as the programs are, by torchrun with as many ranks on as many hosts: `torchrun --nproc-per-node 8
    --no-python tp-compile-pass calibrate`. The result is kept in the user's cache directory and used from then on.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        typer.echo(
            "calibrate measures how ranks communicate, so start two or more:\n"
            "    torchrun --nproc-per-node 2 --no-python tp-compile-pass calibrate",
            err=True,
        )
        raise typer.Exit(2)
    import torch
    import torch.distributed as dist

    from tp_compile_pass.cost import measure

    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend or None)
    found = measure.calibrate(device)
    if dist.get_rank() == 0:
        typer.echo(
            f"{found.flops / 1e9:.1f} GFLOP/s, {found.memory / 1e9:.1f} GB/s of memory, "
            f"{found.launch * 1e6:.1f} us per kernel; {found.key.backend}, {found.key.world} ranks: "
            f"{found.latency * 1e6:.1f} us per step, {found.bandwidth / 1e9:.3f} GB/s\nkept in {found.key.path}"
        )
    dist.destroy_process_group()


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what is installed, what is known to go wrong on this torch, and what here keeps tp_inductor from working.

    The exit status is 1 where something does keep it from working. Settings that a program makes itself are seen by
    `tp_compile_pass.doctor.diagnose()` in that program.
    """
    from tp_compile_pass.doctor import diagnose

    found = diagnose()
    typer.echo(found.to_json() if as_json else str(found))
    if not found.healthy:
        raise typer.Exit(1)
