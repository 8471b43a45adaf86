"""Fail closed: when a step of ours breaks, the user gets what plain Inductor does, and one warning naming the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tp_compile_pass.options import TPOptions
from tp_compile_pass.report.record import GraphReport


class TPInternalError(RuntimeError):
    """A step of tp_compile_pass failed and `tp.strict` asks to hear of it. The cause is chained."""


class TPInternalWarning(UserWarning):
    """A step of tp_compile_pass failed and was left out; the graph is compiled as plain Inductor would."""


@contextmanager
def failing_closed(
    step: str, options: TPOptions, report: GraphReport, undo: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Runs a step of ours. An exception inside is undone and becomes a warning, or TPInternalError with `tp.strict`."""
    try:
        yield
    except Exception as error:
        undo()
        message = f"{step} failed ({type(error).__name__}: {error})"
        if options.strict:
            raise TPInternalError(f"tp_inductor: {message}") from error
        report.warn(f"{message} and was left out", TPInternalWarning)
