"""Inductor as we call it, and its scheduler as we read and order it, apart from `compat` because all of it is private.

Checked on torch 2.5.1, 2.6.0, 2.9.1, 2.13.0 and 2.15.0. Where a version lacks something, `ordering_refused` says so and
Inductor's order stays.

Our order is put in place right before `Scheduler.compute_last_usage`, the step after the last reordering of
Inductor's own on every version. `config.reorder_for_compute_comm_overlap_passes` would be the official place, but
switching that on changes more than the order: lowering keeps the copies that all_reduce sends out of fusions (other
bfloat16 roundings), no-op slices stay in the graph, torch 2.9 prints to stdout, torch 2.15 moves collectives again
afterwards, and `config.deterministic` switches it off.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal, cast

import sympy
import torch

from tp_compile_pass import compat, compat_fusion, compat_reinplace

Form = Literal["kernel", "extern", "collective", "wait", "nothing"]


@dataclass
class Output:
    """A buffer that a scheduler node makes: its name, whether it takes memory, whose that is where it is not its own,
    and whether the node itself reads it (as fused kernels do)."""

    name: str
    takes_memory: bool
    memory_of: str
    read_inside: bool


@dataclass
class NodeFacts:
    """What we know of a scheduler node. `needs` are the buffers it depends on by name, with whether it also keeps their
    memory. Of an extern or template kernel: the `op` that it calls, where it calls one of torch's; the graph nodes it
    was lowered from, with the best match first (`fx`); the graphs that it runs (`nested`)."""

    name: str
    form: Form
    outputs: list[Output]
    needs: list[tuple[str, bool]]
    device: str
    op: Any = None
    fx: list[torch.fx.Node] = field(default_factory=list)
    nested: list[torch.fx.GraphModule] = field(default_factory=list)


def compile_fx(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    wrapper: Any,
    config_patches: dict[str, Any] | None,
    observe: Callable[[torch.fx.GraphModule, str], None],
    around: Callable[[torch.fx.GraphModule, str, Callable[[], Any]], Any],
    marker: str,
) -> compat.CompiledFn:
    """Compiles with Inductor as `wrapper(gm, example_inputs)` does, and calls `observe(graph, phase)` with each graph
    after AOTAutograd ("forward", "backward" or "inference"), before Inductor looks it up in its cache.

    Then `around(graph, phase, compile)` has to return what `compile()` does. Compiled code is cached apart from what
    has another `marker`.

    The hook is `compile_fx`'s `inner_compile` parameter: unlike a custom pass in the config it is there on every
    version and sees the graph even when the FX graph cache then hits. What it changes shows in the cache keys by
    `mark_cache_key`.
    """
    from torch._inductor import compile_fx as module

    def inner_compile(graph: torch.fx.GraphModule, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        backward, inference = kwargs.get("is_backward", False), kwargs.get("is_inference", False)
        phase = "backward" if backward else "inference" if inference else "forward"
        observe(graph, phase)
        with compat_fusion.keeping_writes_in_between(), compat_reinplace.keeping_what_is_sent():
            return around(graph, phase, lambda: module.compile_fx_inner(graph, inputs, *args, **kwargs))

    extra: dict[str, Any] = {}
    if "compile_region_name" in inspect.signature(module.compile_fx).parameters:
        extra["compile_region_name"] = getattr(wrapper, "name", None)
    patches = {**wrapper.config, **(config_patches or {})}
    patches = mark_cache_key(patches, f"tp_compile_pass {metadata.version('tp-compile-pass')} {marker}")
    compiled = module.compile_fx(gm, example_inputs, inner_compile=inner_compile, config_patches=patches, **extra)
    return cast(compat.CompiledFn, compiled)


def mark_cache_key(patches: dict[str, Any], marker: str) -> dict[str, Any]:
    """`patches` of Inductor's config plus one that changes nothing but the keys of its caches and AOTAutograd's.

    AOTAutograd's key knows the captured graph and the config only, so a graph that we edit after it needs this, or a
    result that plain Inductor stored would be loaded instead.
    """
    from torch._inductor import config

    if not hasattr(config, "unsafe_marked_cacheable_functions"):  # before torch 2.7
        if patches.get("reorder_for_compute_comm_overlap", config.reorder_for_compute_comm_overlap):
            return {**patches, "fx_graph_cache": False}
        # Not read where the flag is off, but part of the key.
        unread = "reorder_for_compute_comm_overlap_passes"
        return {**patches, unread: [*patches.get(unread, getattr(config, unread)), marker]}
    known = {**config.unsafe_marked_cacheable_functions, **patches.get("unsafe_marked_cacheable_functions", {})}
    return {**patches, "unsafe_marked_cacheable_functions": {**known, marker: "tp_compile_pass"}}


# ---------------------------------------------------------------------------------------------------------- scheduler
Plan = Callable[[Sequence[Any]], Sequence[Any]]
_plan: ContextVar[Plan | None] = ContextVar("tp_compile_pass_plan", default=None)


def ordering_refused() -> str:
    """Why this torch's scheduler cannot be ordered; "" where it can."""
    try:
        _install()
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} has another scheduler than {', '.join(compat.CHECKED)}: {error}"
    return ""


@contextmanager
def ordering(plan: Plan) -> Iterator[None]:
    """While this is open, each list of scheduler nodes that this thread compiles runs in the order `plan` returns.

    `plan` must return a permutation of the list that respects its dependencies. Compilations of other threads, and
    those outside, are Inductor's own.
    """
    _install()
    token = _plan.set(plan)
    try:
        yield
    finally:
        _plan.reset(token)


@functools.cache
def _install() -> None:
    from torch._inductor.ir import MultiOutput, MultiOutputLayout, NoneLayout, _CollectiveKernel, _WaitKernel  # noqa: F401
    from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode, Scheduler  # noqa: F401

    original = Scheduler.compute_last_usage

    @functools.wraps(original)
    def compute_last_usage(self: Any) -> Any:
        plan = _plan.get()
        if plan is not None:
            self.nodes = list(plan(self.nodes))
        return original(self)

    Scheduler.compute_last_usage = compute_last_usage  # type: ignore[method-assign]


def on_several_streams() -> bool:
    """Whether the program puts kernels on streams of its own (torch 2.13 and later let it)."""
    return bool(getattr(_graph().scheduler, "_multi_stream_nodes", False))


def _graph() -> Any:
    from torch._inductor.virtualized import V

    return V.graph


@dataclass
class _Asked:
    factor: float
    sizes: dict[sympy.Symbol, int] = field(default_factory=dict)


_asked: ContextVar[_Asked | None] = ContextVar("asked", default=None)


@contextmanager
def sizes(factor: float = 1.0) -> Iterator[dict[sympy.Symbol, int]]:
    """Inside, `hint` answers for dynamic sizes `factor` times those that this compilation was made for, as far as its
    code is for them. Yields these sizes, as they are asked for."""
    asked = _Asked(factor)
    token = _asked.set(asked)
    try:
        yield asked.sizes
    finally:
        _asked.reset(token)


def hint(size: sympy.Expr | int) -> int:
    """The size that this compilation was made for; 0 for one that only the run will tell."""
    if isinstance(size, (int, sympy.Integer)):
        return int(size)
    known = _graph().sizevars
    look_up = getattr(known, "optimization_hint", None) or known.size_hint
    asked = _asked.get()
    if asked is None:
        return int(look_up(size, fallback=0))
    size = known.simplify(known.remove_precomputed_replacements(size))
    for symbol in size.free_symbols - asked.sizes.keys():
        value = int(look_up(symbol, fallback=0))
        if not value:
            return int(look_up(size, fallback=0))
        asked.sizes[symbol] = _inside(symbol, round(value * asked.factor))
    return int(size.xreplace({symbol: sympy.Integer(asked.sizes[symbol]) for symbol in size.free_symbols}))


def _inside(symbol: sympy.Symbol, value: int) -> int:
    """The value nearest to `value` that guards let `symbol` have."""
    limits = _graph().sizevars.shape_env.var_to_range.get(symbol)
    if limits is None:
        return max(1, value)
    upper = int(limits.upper) if limits.upper.is_Integer else value  # else without limit
    return max(int(limits.lower), 1, min(value, upper))


def node_facts(snode: Any) -> NodeFacts:
    """Reads a scheduler node."""
    from torch._inductor import ir
    from torch._inductor.dependencies import WeakDep
    from torch._inductor.scheduler import NopKernelSchedulerNode

    parts = list(snode.get_nodes())
    node = snode.node if len(parts) == 1 else None
    form: Form = "kernel"
    if isinstance(node, ir._WaitKernel):
        form = "wait"
    elif isinstance(node, ir._CollectiveKernel):
        form = "collective"
    elif isinstance(snode, NopKernelSchedulerNode) or isinstance(node, ir.MultiOutput):
        form = "nothing"
    elif node is not None and snode.is_extern():
        form = "extern"
    external = [part for part in parts if part.node is not None and (part.is_extern() or part.is_template())]
    inside = {dep.name for part in parts for dep in part.read_writes.reads} if len(parts) > 1 else set()
    device = snode.get_device()
    return NodeFacts(
        name=snode.get_name(),
        form=form,
        outputs=[_output(buffer, inside) for buffer in snode.get_outputs()],
        needs=[
            (dep.name, not (isinstance(dep, WeakDep) and getattr(dep, "is_fake", True)))
            for dep in sorted(snode.unmet_dependencies, key=lambda dep: str(dep.name))
        ],
        device=device.type if device is not None else "cpu",
        op=next((part.node.op_overload for part in external if getattr(part.node, "op_overload", None)), None),
        fx=[fx for part in external for fx in _origins(part.node)],
        nested=[graph for part in external for graph in _nested(part.node)],
    )


def _origins(node: Any) -> list[torch.fx.Node]:
    """The graph nodes that were being lowered when the kernel was made. The one that it computes comes first; others
    asked for its result (a collective does, for what it sends)."""
    own, op = node.get_origin_node(), getattr(node, "op_overload", None)
    found = {*node.origins, *([own] if own is not None else [])}
    return sorted(found, key=lambda fx: (fx is not own, fx.target is not op, fx.name))


def _nested(node: Any) -> list[torch.fx.GraphModule]:
    """The graphs that a higher-order op (cond, while_loop, invoke_subgraph) runs."""
    from torch._inductor import ir

    values = [v for value in vars(node).values() for v in (value if isinstance(value, (list, tuple)) else [value])]
    return [value.graph_module for value in values if isinstance(value, ir.Subgraph)]


def _output(buffer: Any, inside: set[str]) -> Output:
    from torch._inductor import ir

    name = buffer.get_name()
    memory_of = _graph().scheduler.mutation_real_name.get(name, name)
    layout = getattr(buffer.node, "layout", None)
    shapeless = layout is None or isinstance(layout, (ir.NoneLayout, ir.MultiOutputLayout))
    return Output(name, memory_of == name and not shapeless, memory_of, name in inside)


def output_names() -> frozenset[str]:
    """The buffers that the graph returns, or that are inputs it writes to."""
    return frozenset(_graph().get_output_names())


def size_of(name: str) -> tuple[int, int]:
    """Elements of a buffer, input or constant, and bytes of each; (0, 0) for what is no tensor."""
    graph = _graph()
    with suppress(KeyError, NotImplementedError, AttributeError):
        return hint(graph.get_numel(name)), graph.get_dtype(name).itemsize
    return 0, 0


def indexed(snode: Any) -> dict[str, Callable[[], int]]:
    """What a kernel reads and writes, by name, with a function that says how many elements of it the kernel indexes
    (slow, and seldom less than all)."""
    from torch._inductor.dependencies import WeakDep

    deps: dict[str, list[Any]] = {}
    for dep in (*snode.read_writes.reads, *snode.read_writes.writes):
        if not isinstance(dep, WeakDep):
            deps.setdefault(dep.name, []).append(dep)
    return {name: functools.partial(_elements, found) for name, found in deps.items()}


def _elements(deps: list[Any]) -> int:
    return sum(hint(dep.get_numel()) for dep in deps)


def input_names() -> list[str]:
    """The graph's inputs and constants."""
    return [*_graph().graph_inputs, *_graph().constants]


def freeable_inputs(snodes: Sequence[Any]) -> set[str]:
    """The inputs whose memory is given back after their last use: what the forward pass saved."""
    try:
        from torch._inductor.utils import is_nonfreeable_buffers
    except ImportError:  # before torch 2.6 nobody asks
        return set()
    names = _graph().graph_inputs
    deps = (dep for snode in snodes for dep in snode.read_writes.reads)
    return {dep.name for dep in deps if dep.name in names and not is_nonfreeable_buffers(dep)}


def read_names(snode: Any) -> list[str]:
    """The buffers and inputs that a scheduler node reads."""
    return sorted({dep.name for dep in snode.read_writes.reads})


def estimated_seconds(snode: Any) -> float:
    """Inductor's own estimate for a kernel; 0 where it has none (it knows GPUs only)."""
    # Up to torch 2.7 the method answers in nanoseconds, later in milliseconds.
    scale = 1e-9 if compat.TORCH < (2, 8) else 1e-3
    try:
        return float(snode.get_estimated_runtime()) * scale
    except Exception:  # it asks the driver, triton and the device for figures, each of which may be missing
        return 0.0


def source_code(compiled: Any) -> str:
    """The Python code that Inductor generated; "" where the compiled graph does not keep it."""
    return str(getattr(compiled, "source_code", "") or "")
