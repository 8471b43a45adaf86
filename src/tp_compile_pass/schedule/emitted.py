"""The order that Inductor's generated code has, against the one that was planned.

Both are lists of steps: a collective by its op ("all_reduce_"), "wait", or "kernels" for any number of kernels between
two of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from tp_compile_pass.ir import table

_OP = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?\(")
_KERNEL = re.compile(r"extern_kernels\.\w+\(|\bcpp_\w+\(|\.run\(")
KERNELS, WAIT = "kernels", "wait"


def planned_steps(steps: Sequence[str], order: Iterable[int]) -> list[str]:
    """The steps of a plan; `steps` has each task's, "" for one that comes down to no code."""
    return _merged(steps[index] for index in order)


def emitted_steps(source: str) -> list[str] | None:
    """The steps of Python code that Inductor generated; None where none of them communicates (C++ code, say)."""
    steps = []
    for line in source.splitlines():
        if "async_compile." in line or line.lstrip().startswith(("#", "def ")):
            continue
        if call := _OP.search(line):
            name = f"{call[1]}::{call[2]}"
            steps.append(WAIT if name in table.WAITS else call[2] if name in table.ROWS else KERNELS)
        elif _KERNEL.search(line):
            steps.append(KERNELS)
    communicates = any(step != KERNELS for step in steps)
    return _merged(steps) if communicates else None


def _merged(steps: Iterable[str]) -> list[str]:
    """Without empty steps, and with kernels in a row as one."""
    return [step for step, run in groupby(filter(None, steps)) for _ in ([step] if step == KERNELS else run)]


def communication(steps: Iterable[str]) -> list[str]:
    """The collectives and waits alone. Kernels can be missing for a good reason: what a task stands for may come down
    to no call at all (a number that is read, an assertion)."""
    return [step for step in steps if step != KERNELS]


def difference(planned: Sequence[str], emitted: Sequence[str]) -> str:
    """Where the generated code departs from the plan; "" where it follows it. Kernels that the code groups otherwise
    than counted here are no difference; collectives, waits and whether there are kernels between them are."""
    for number, (ours, theirs) in enumerate(zip(planned, emitted, strict=False)):
        if ours != theirs:
            return f"step {number} is {theirs!r} and was planned as {ours!r}"
    if len(planned) != len(emitted):
        return f"{len(emitted)} steps were emitted and {len(planned)} planned"
    return ""
