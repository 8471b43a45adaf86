"""AsyncCollectiveTensors that eager code hands to a compiled region.

torch 2.13 and 2.15 resolve such an input inside AOTAutograd, which loses the autograd history of everything before the
region: an error at best, and a silently wrong gradient with an eager residual around the region. torch 2.5 to 2.9
trace through the wrapper, which fails where the region returns a view of it and is wrong where it writes to it.

Here the graph is compiled for the plain tensor instead, and the compiled function is handed one that carries the
history. It is waited for at the region's door, or where the graph allows it only at its first use (`first_use`).

In a training graph an input always waits at the door, for a wait inside is unsound there: AOTAutograd takes its result
for memory of its own, saves that and lets the backward graph overwrite it (buffer donation, 2.6 and later), while the
caller still reads the input. Up to 2.9 it has no gradient either. For the same reason the user's own waits of such an
input are taken out of the graph (`_drop_waits`): they have happened at the door.

What torch handles rightly by itself is left to it (`compat.torch_waits_for`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tp_compile_pass import compat
from tp_compile_pass.capture.first_use import FirstUse, first_use
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import BoundaryInput
from tp_compile_pass.report.source import SourceLine, source_line

AT_THE_DOOR = "waited for at the door"
AT_FIRST_USE = "waited for at its first use"
BY_TORCH = "waited for by torch"

CompiledFn = Callable[..., Any]
#: An argument that may be async → the plain one to call the compiled function with.
Enter = Callable[[Any], Any]


@dataclass
class Plan:
    """How the async inputs of one graph enter it: `inputs` is what to compile for, `records` what to report."""

    inputs: Sequence[Any]
    records: list[BoundaryInput] = field(default_factory=list)
    _enter: list[tuple[int, Enter]] = field(default_factory=list)

    @property
    def wraps(self) -> bool:
        """Whether the compiled function has to be wrapped."""
        return bool(self._enter)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """What the graph has to be compiled under."""
        with ExitStack() as stack:
            if self.wraps:
                # The graph and its inputs look as under plain Inductor, whose code waits for these inputs itself.
                stack.enter_context(compat.with_cache_key_tag("tp_compile_pass async inputs"))
            if any(enter is in_flight for _, enter in self._enter):
                stack.enter_context(compat.without_locality_reordering())
            yield

    def wrap(self, compiled: CompiledFn) -> CompiledFn:
        """`compiled`, called with its async inputs made plain; the very same object where there are none."""
        return _entering(compiled, self._enter) if self.wraps else compiled


def plan(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], context: PassContext, copies_inputs: str = ""
) -> Plan:
    """Decides for each async input of `gm` how it enters, and puts waits into the graph where they belong there.

    `copies_inputs` is why Inductor's code may read an input before the graph runs ("" where it does not); such an input
    cannot be in flight.
    """
    entered = [position for position, value in enumerate(example_inputs) if compat.holds_async(value)]
    result = Plan(example_inputs)
    if not entered:
        return result
    context.before_edit(gm)
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    uses = {i: copies_inputs or _first_use(gm, nodes[i], i, example_inputs) for i in entered}
    result.inputs = list(example_inputs)
    for i in entered:
        node, use, value = nodes[i], uses[i], example_inputs[i]
        if compat.torch_waits_for(value):
            reason = f"it does so at the door for what is inside a {type(value).__name__}"
            result.records.append(BoundaryInput(node.name, BY_TORCH, reason, _first_line(node)))
            _drop_waits(gm, node, context)
            continue
        late = isinstance(use, FirstUse)
        enter = in_flight if late else resolved
        result.inputs[i] = compat.with_context_of(value, enter(value))
        result._enter.append((i, enter))
        result.records.append(
            BoundaryInput(node.name, AT_FIRST_USE if late else AT_THE_DOOR, "" if late else str(use), _first_line(node))
        )
        if isinstance(use, FirstUse):
            use.insert_wait()
        if not late:
            _drop_waits(gm, node, context)
        node.meta["example_value"] = compat.plain_like(walk.example_value(node))
    return result


def _first_use(gm: torch.fx.GraphModule, node: torch.fx.Node, i: int, example_inputs: Sequence[Any]) -> FirstUse | str:
    value = example_inputs[i]
    if not compat.is_async_collective(value):
        return f"it is inside a {type(value).__name__}"
    if value.requires_grad:
        return "a gradient has to pass the wait"
    if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in example_inputs):
        return "the region is trained, and its backward may overwrite what a wait inside it returns"
    memory = compat.storages(value)
    if any(not memory.isdisjoint(compat.storages(other)) for j, other in enumerate(example_inputs) if j != i):
        return "another input shares its memory"
    return first_use(gm, node)


def _drop_waits(gm: torch.fx.GraphModule, placeholder: torch.fx.Node, context: PassContext) -> None:
    """Takes out the waits of `placeholder` and of its views, nested graphs included: what they wait for is complete.

    Up to torch 2.9 a wait in the graph has no gradient, like one in eager; a detach says the same."""
    memory = compat.storages(walk.example_value(placeholder))
    for module, node in list(walk.nodes(gm)):
        if not (collectives.is_wait(node) or compat.is_wait_function(node.target)):
            continue
        waited = node.args[0]
        assert isinstance(waited, torch.fx.Node)
        if memory.isdisjoint(compat.storages(walk.example_value(waited))):
            continue
        context.before_edit(module)
        result = waited
        if not compat.waits_have_gradients():
            with node.graph.inserting_before(node):
                result = node.graph.call_function(torch.ops.aten.detach.default, (waited,))
            result.meta = dict(node.meta)
        node.replace_all_uses_with(result)
        node.graph.erase_node(node)


def _first_line(node: torch.fx.Node) -> SourceLine | None:
    first = next(iter(node.users), None)
    return source_line(first) if first is not None else None


class _Enter(torch.autograd.Function):
    """Identity in the history's eyes, from an async tensor to the plain one it stands for."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, wait: bool) -> torch.Tensor:
        # Detached, because autograd writes the history into the object that is returned here.
        return compat.resolve_async(tensor, wait).detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return grad, None


def _enter(tensor: torch.Tensor, wait: bool) -> torch.Tensor:
    if not tensor.requires_grad:
        return compat.resolve_async(tensor, wait)
    if torch.is_grad_enabled():
        return _Enter.apply(tensor, wait)  # type: ignore[no-any-return]
    with torch.enable_grad():  # the region may enable it
        return _Enter.apply(tensor, wait)  # type: ignore[no-any-return]


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Waits for what is async in `tensor`; the plain tensor on the same memory, with the same history."""
    return _enter(tensor, wait=True) if compat.holds_async(tensor) else tensor


def in_flight(tensor: torch.Tensor) -> torch.Tensor:
    """The same for a graph that waits itself: the memory that an AsyncCollectiveTensor's collective is writing to."""
    if not compat.is_async_collective(tensor):
        return tensor
    # On GPU Inductor's code copies an input that is not aligned as it was compiled for, before the graph runs.
    return _enter(tensor, wait=tensor.device.type != "cpu" and tensor.elem.data_ptr() % 16 != 0)  # type: ignore[attr-defined]


def _entering(compiled: CompiledFn, enter: list[tuple[int, Enter]]) -> CompiledFn:
    def call(*args: Any) -> Any:
        arguments = list(args)
        with_history = []
        for position, enters in enter:
            given = args[position]
            plain = arguments[position] = enters(given)
            if plain is not given and plain.requires_grad:
                with_history.append((given, plain, plain.grad_fn))
        result = compiled(*arguments)
        for given, plain, history in with_history:
            if plain.grad_fn is not history:  # written to inside: the memory is shared, the history is not
                given.copy_(plain)
        return result

    if hasattr(compiled, "serialize"):  # torch.compile(...).aot_compile asks for it; what it returns works in here
        call.serialize = _cannot_be_saved  # type: ignore[attr-defined]
    return call


def _cannot_be_saved() -> bytes:
    raise RuntimeError(
        "tp_inductor: this graph was compiled for an AsyncCollectiveTensor, which is made a plain tensor before each "
        "call; a saved function would be called without that. Wait for the tensor before it enters the compiled region"
    )
