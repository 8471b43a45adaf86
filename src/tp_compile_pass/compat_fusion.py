"""Inductor's loop fusion, where it forgets an order that collectives depend on.

Checked on torch 2.5.1, 2.6.0, 2.9.1 and 2.13.0, which forget it, and on 2.15.0, which does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: To see whether two loops fit together, Inductor's C++ backend computes a kernel's sizes anew
#: (`SchedulerNode.recompute_size_and_body`), and with them what it reads. Up to torch 2.13 that drops what was known
#: about writes in between: a kernel that reads a buffer after the wait of an in-place collective is then taken to need
#: only what was sent. On 2.13 the result of the attempt is kept, and the kernel may run before the wait, or be fused
#: with the one that filled the buffer: a silent race (tests/test_compat_fusion.py).
FORGETS_WRITES_IN_BETWEEN = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15)


@contextmanager
def keeping_writes_in_between() -> Iterator[set[str]]:
    """While it is entered, Inductor keeps what a kernel has to come after. Yields the names of its kernels for which
    something was put back. Other backends are compiled as ever: enter it around one compilation."""
    repaired: set[str] = set()
    if not FORGETS_WRITES_IN_BETWEEN:
        yield repaired
        return
    from torch._inductor import scheduler

    kernel: Any = scheduler.SchedulerNode
    original = kernel.recompute_size_and_body

    @functools.wraps(original)
    def recompute(node: Any, *args: Any, **kwargs: Any) -> None:
        before, buffer_of = node.read_writes.reads, node.scheduler.mutation_real_name
        original(node, *args, **kwargs)
        # The name of a dependency says after which write of the buffer; what is read anew says only which buffer.
        renames = {buffer_of[dep.name]: dep.name for dep in before if dep.name in buffer_of}
        known = node.read_writes.rename(renames)
        for dep in before:
            if type(dep).__name__ in ("WeakDep", "StarDep"):  # put there by the scheduler
                known = known.with_read(dep)
        if known.reads != node.read_writes.reads:
            repaired.add(node.get_name())
            node.set_read_writes(known)

    kernel.recompute_size_and_body = recompute
    try:
        yield repaired
    finally:
        kernel.recompute_size_and_body = original
