"""`tp_inductor`: capture → Inductor → report. The one place that wires the parts.

Registered with torch by the entry point group `torch_dynamo_backends` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from tp_compile_pass import compat, compat_gather, compat_meshes, compat_precompile
from tp_compile_pass.capture import boundary, work
from tp_compile_pass.capture.async_tensor import WaitCallSites
from tp_compile_pass.failsafe import failing_closed
from tp_compile_pass.inner import Inner, inner_compiler
from tp_compile_pass.options import TPOptions
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.passes.contiguous_inputs import ContiguousInputs
from tp_compile_pass.passes.identical_collectives import IdenticalCollectives
from tp_compile_pass.passes.in_place_results import InPlaceResults
from tp_compile_pass.passes.pipeline import run_passes
from tp_compile_pass.passes.reduced_parts import ReducedParts
from tp_compile_pass.passes.redundant_waits import RedundantWaits
from tp_compile_pass.passes.scattered_gathers import ScatteredGathers
from tp_compile_pass.passes.unused_collectives import UnusedCollectives
from tp_compile_pass.report import record
from tp_compile_pass.report.collect import collective_records
from tp_compile_pass.report.record import GraphReport
from tp_compile_pass.schedule.run import Overlap
from tp_compile_pass.verify.check import check_captured, check_graph
from tp_compile_pass.verify.partition import watching
from tp_compile_pass.verify.rank_check import check_ranks

compat.require_supported_torch()

#: Passes over the graph as Dynamo captured it.
CAPTURE_PASSES = (WaitCallSites(), work.KeepUnused())

#: Passes over each graph that leaves AOTAutograd.
GRAPH_PASSES = (
    IdenticalCollectives(),
    UnusedCollectives(),
    ScatteredGathers(),
    ReducedParts(),
    RedundantWaits(),
    *((ContiguousInputs(),) if compat.WAITS_ON_A_COPY else ()),
    InPlaceResults(),
)


def tp_inductor(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    config_patches: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend behind `torch.compile(model, backend="tp_inductor")`; torch calls it once per captured graph.

    `mode`, `options`, `name` and `config_patches` mean what they mean to `backend="inductor"`; options that start
    with `tp.` are ours (`TPOptions`). Raises TPOptionError for a wrong option of ours, Inductor's own error for a
    wrong one of its.
    """
    tp, inductor_options = TPOptions.split(options)
    report = GraphReport(compat.compile_id(), tp.inner, tp.model_dump())
    inner = inner_compiler(tp, mode, inductor_options, name, config_patches, report)
    record.add(report)
    if compat_precompile.precompile_cache_is_on():
        report.warn(
            "TORCH_CACHING_PRECOMPILE keys its cache on the source alone: what is compiled here is also loaded under "
            "another backend, and the reverse. Use a cache directory per backend"
        )
    if (captured := work.take()) is not None:
        report.passes.append(captured)
    run_passes(CAPTURE_PASSES, gm, PassContext(tp, "captured"), report)
    check_captured(gm, tp, report)
    check_ranks(gm, tp, report)
    copies_inputs = compat.copies_inputs(mode, inductor_options, config_patches)
    compiled = _compile(gm, example_inputs, inner, tp, report, copies_inputs)
    compat.trace_artifact("tp_compile_pass_report", record.Report([report]).to_json)
    return compiled


work.install(tp_inductor)
compat_gather.gather_apart()


def _reset() -> None:
    compat.reset_inductor()
    work.forget()


tp_inductor.reset = _reset  # type: ignore[attr-defined]  # called by torch._dynamo.reset()


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    inner: Inner,
    tp: TPOptions,
    report: GraphReport,
    copies_inputs: str,
) -> Callable[..., Any]:
    captured = collective_records(gm, "captured")
    observe = partial(_observe, tp=tp, report=report, goes_on=compat.ends_in_graph_break(gm))
    entry = boundary.Plan(example_inputs)
    if tp.inner != "eager":  # run as it is, a graph takes async tensors as eager code does
        context = PassContext(tp, "captured")
        with failing_closed("resolving async inputs", tp, report, undo=context.undo):
            entry = boundary.plan(gm, example_inputs, context, copies_inputs)
            context.keep()
    report.boundary += entry.records
    keeping_out: Any = nullcontext()
    if entry.wraps and compat_precompile.precompile_cache_is_on():
        reason = "tp_inductor: a graph with AsyncCollectiveTensor inputs would come back without the waits for them"
        report.notes.append(f"not stored in torch's precompile cache: {reason}")
        keeping_out = compat_precompile.kept_out_of_precompile_cache(reason)
    with entry.compiling(), keeping_out, watching(tp, report), compat_meshes.printable_meshes():
        compiled = entry.wrap(inner(gm, entry.inputs, observe, Overlap(gm, tp, report)))
    if not report.phases:
        report.collectives[:0] = captured
        if tp.inner != "eager":
            report.notes.append(
                "loaded from AOTAutograd's cache: the collectives listed are those Dynamo captured (DTensor's own are "
                "not visible there); explain() compiles without that cache"
            )
    return compiled


def _observe(gm: torch.fx.GraphModule, phase: str, *, tp: TPOptions, report: GraphReport, goes_on: bool) -> None:
    """Sees each graph that leaves AOTAutograd, and runs our passes over it."""
    report.phases.append(phase)
    run_passes(GRAPH_PASSES, gm, PassContext(tp, phase), report)
    with failing_closed(f"reading the {phase} graph's collectives", tp, report):
        report.collectives += collective_records(gm, phase)
    check_graph(gm, phase, tp, report, goes_on)
