"""Runs passes one after the other, and fails closed: a pass that raises leaves the graph as it found it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tp_compile_pass.failsafe import failing_closed
from tp_compile_pass.passes.base import Pass, PassContext
from tp_compile_pass.report.record import GraphReport


def run_passes(passes: Sequence[Pass], gm: torch.fx.GraphModule, context: PassContext, report: GraphReport) -> None:
    """Applies `passes` to `gm` in place and files each result in `report`.

    Raises TPInternalError where a pass fails and `tp.strict` is set; otherwise that pass is undone and warned about.
    """
    for graph_pass in passes:
        with failing_closed(f"pass {graph_pass.name}", context.options, report, undo=context.undo):
            result = graph_pass.apply(gm, context)
            context.keep()
            if result.applied or result.skipped:
                report.passes.append(result)
