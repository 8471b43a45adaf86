"""What a captured graph is handed to: Inductor, or for debugging AOTAutograd alone or nothing (`tp.inner`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tp_compile_pass import compat, compat_inductor
from tp_compile_pass.options import TPOptions
from tp_compile_pass.report.record import GraphReport
from tp_compile_pass.schedule.run import Overlap

Observe = Callable[[torch.fx.GraphModule, str], None]
#: Compiles a graph: (graph, example inputs, observe, overlap) → callable. `observe(graph, phase)` is called with every
#: graph that leaves AOTAutograd, and `overlap` orders those that Inductor compiles.
Inner = Callable[[torch.fx.GraphModule, Sequence[Any], Observe, Overlap], Callable[..., Any]]


def inner_compiler(
    tp: TPOptions,
    mode: str | None,
    options: dict[str, Any],
    name: str | None,
    config_patches: dict[str, Any] | None,
    report: GraphReport,
) -> Inner:
    """The compiler that `tp.inner` names. Inductor validates `mode` and `options` in every case; where they are valid
    but another compiler is asked for, each is warned about by name, since it has no effect."""
    wrapper = compat.inductor_wrapper(mode, options, name)
    if tp.inner == "inductor":
        # What passes decide by besides the graph; the options that matter to the order are in the overlap's marker.
        word = f"tp_compile_pass.passes drop_unused={tp.drop_unused} own_part={tp.own_part}"
        return lambda gm, inputs, observe, overlap: compat_inductor.compile_fx(
            gm, inputs, wrapper, config_patches, observe, overlap.compile, f"{word} {overlap.marker}"
        )
    unused = [f"option {key!r}" for key in options] + ([f"mode {mode!r}"] if mode and mode != "default" else [])
    for setting in unused:
        report.warn(f"{setting} has no effect with tp.inner={tp.inner!r}")
    return _aot_eager if tp.inner == "aot_eager" else _eager


def _eager(gm: torch.fx.GraphModule, inputs: Sequence[Any], observe: Observe, _: Overlap) -> Callable[..., Any]:
    return gm.forward


def _aot_eager(gm: torch.fx.GraphModule, inputs: Sequence[Any], observe: Observe, _: Overlap) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition

    def compiler(phase: str) -> Callable[..., Any]:
        def compile_graph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
            observe(graph, phase)
            return make_boxed_func(graph.forward)  # type: ignore[no-any-return]

        return compile_graph

    return compat.aot_autograd(
        gm,
        inputs,
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
