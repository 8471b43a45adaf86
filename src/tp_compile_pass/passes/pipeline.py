"""Runs passes one after the other, and fails closed: a pass that raises, or that breaks a rule of the verifier, leaves
the graph as it found it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tp_compile_pass.failsafe import failing_closed
from tp_compile_pass.passes.base import Pass, PassContext
from tp_compile_pass.report.record import GraphReport
from tp_compile_pass.verify.check import PassCheck


def run_passes(passes: Sequence[Pass], gm: torch.fx.GraphModule, context: PassContext, report: GraphReport) -> None:
    """Applies `passes` to `gm` in place and files each result in `report`.

    Raises TPInternalError where a pass fails and `tp.strict` is set; otherwise that pass is undone and warned about.
    """
    check: PassCheck | None = None

    def look() -> None:
        nonlocal check
        with failing_closed(f"verifying the {context.phase} graph", context.options, report):
            check = PassCheck(gm)

    if context.options.verify != "off":
        context.at_first_edit(look)
    for graph_pass in passes:
        with failing_closed(f"pass {graph_pass.name}", context.options, report, undo=context.undo):
            result = graph_pass.apply(gm, context)
            if check is not None and result.applied:
                check.after_pass(context.replaced)
            context.keep()
            if result.applied or result.skipped:
                report.passes.append(result)
