"""Inductor's reinplacing, where it overwrites what a collective still sends.

Checked on torch 2.5.1, 2.6.0, 2.9.1, 2.13.0 and 2.15.0. All decide alike; on 2.5 and 2.6 the wait was found to come
first nevertheless. After AOTAutograd a graph is functional, and Inductor lets an op write its operand's memory where
nothing reads that later (`reinplace_inplaceable_ops_core`). To it an all_gather has read its operand when it has
started. So in

    gathered = all_gather(x); reduced = all_reduce(x); wait(gathered); wait(reduced)

the all_reduce is done in place, in the memory that the all_gather is sending: a silent race, found by our fuzzer
(tests/test_compat_reinplace.py). The graph before is right and the verifier has nothing to say; hence here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.fx import Graph, Node

from tp_compile_pass.ir import collectives


@contextmanager
def keeping_what_is_sent() -> Iterator[None]:
    """While it is entered, Inductor takes what a collective sends as in use until the collective's wait. Other backends
    are compiled as ever: enter it around one compilation."""
    from torch._inductor.fx_passes import reinplace

    original = reinplace.reinplace_inplaceable_ops_core

    @functools.wraps(original)
    def reinplace_with_readers(graph: Graph) -> None:
        readers = list(_readers(graph))
        original(graph)
        for reader in readers:
            graph.erase_node(reader)

    with patch.object(reinplace, "reinplace_inplaceable_ops_core", reinplace_with_readers):
        yield


def _readers(graph: Graph) -> Iterator[Node]:
    """Puts into `graph`, for as long as it is looked at, a reader of each tensor that is being sent: behind each wait
    of its collective, or at the end where there is none."""
    for node in list(graph.nodes):
        row = collectives.collective_op(node)
        if row is None or row.waited == "inside":
            continue
        for sent in collectives.operands(node, row.holds):
            waits = list(_waits(node))
            last = next(iter(reversed(graph.nodes)))
            for wait in waits or [last.prev]:
                with graph.inserting_after(wait):
                    yield graph.call_function(torch.ops.aten.relu.default, (sent,))


def _waits(node: Node) -> Iterator[Node]:
    """The waits for a collective's result, or for the elements of it."""
    for user in node.users:
        if collectives.is_wait(user):
            yield user
        elif getattr(user.target, "__name__", "") == "getitem":
            yield from _waits(user)
