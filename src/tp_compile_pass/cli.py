"""The `tp-compile-pass` command."""

import typer

app = typer.Typer(help=__doc__, no_args_is_help=True)
