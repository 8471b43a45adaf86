"""Reads the collectives of a graph into a report."""

from __future__ import annotations

import torch

from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.report.record import CollectiveRecord
from tp_compile_pass.report.source import source_line


def collective_records(gm: torch.fx.GraphModule, phase: str) -> list[CollectiveRecord]:
    """One record per collective of `gm` and of the graphs nested in it, in graph order."""
    found = []
    for _, node in walk.nodes(gm):
        row = collectives.collective_op(node)
        if row is None:
            continue
        value = walk.example_value(node)
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        shape = tuple(map(str, first.shape)) if isinstance(first, torch.Tensor) else ()
        found.append(
            CollectiveRecord(
                phase=phase,
                op=str(node.target),
                kind=row.kind,
                group=collectives.group_name(node),
                dtype=str(first.dtype).removeprefix("torch.") if isinstance(first, torch.Tensor) else "",
                shape=shape,
                bytes=str(collectives.result_bytes(node)),
                line=source_line(node),
            )
        )
    return found
