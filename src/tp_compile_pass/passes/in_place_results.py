"""Results that go straight into the caller's buffer, where the user's code gave c10d that buffer.

`dist.all_gather_into_tensor(out, x, async_op=True)` is captured as a functional collective whose result is copied into
`out`. For a buffer made inside the graph that copy vanishes by itself. For one of the graph's inputs it stays, as a
`copy_` at the end of the graph: one copy more than eager, of the largest tensors there are. The pass turns such a
collective into the form that writes its buffer: `all_gather_into_tensor_out`, `broadcast_` and so on.

Inductor does the same for an all_reduce of a graph input itself (`reinplace_inplaceable_ops`), and only for that.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass import compat, compat_gather
from tp_compile_pass.ir import aliases, collectives, walk
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import PassResult, Place
from tp_compile_pass.report.source import source_line

aten = torch.ops.aten
#: Ops that give the same elements in the same order another shape.
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
#: Ops that read a tensor's sizes, not its data.
METADATA = (aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default)
#: Functional collective → the op that writes the result into a tensor it is given (as `out=`), where torch has it.
OUT_FORMS = {
    "_c10d_functional::all_gather_into_tensor": "all_gather_into_tensor_out",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter_tensor_out",
}
#: Functional collective → the op that works on its first argument's own memory.
IN_PLACE_FORMS = {"_c10d_functional::broadcast": "broadcast_", "_c10d_functional::all_reduce": "all_reduce_"}


class InPlaceResults:
    """The pass. Requires a graph after AOTAutograd (nodes with `val`, mutated inputs as `copy_` at its end); ensures
    that the collectives it rewrote write the caller's buffer, which nothing else in the graph reads or writes."""

    name = "in_place_results"

    def apply(self, gm: GraphModule, context: PassContext) -> PassResult:
        result = PassResult(self.name)
        for copy in [node for node in gm.graph.nodes if walk.is_op(node, aten.copy_.default)]:
            buffer = copy.args[0]
            wait = _source(copy.args[1])
            start = wait.args[0] if collectives.is_wait(wait) else None
            if not isinstance(start, Node) or buffer.op != "placeholder" or collectives.collective_op(start) is None:
                continue
            name = collectives.op_name(start)
            if name == "_c10d_functional::all_reduce" and start.args[0] is buffer:
                continue  # Inductor's own
            what = f"{name.partition('::')[2]} whose result is copied into the graph's input {buffer.name!r}"
            if reason := _why_not(copy, buffer, wait, start):
                result.skipped.append(Place(start.name, what, source_line(start), reason))
                continue
            context.before_edit(gm)
            _rewrite(copy, buffer, wait, start)
            result.applied.append(Place(start.name, what, source_line(start)))
        return result


def _source(node: Node) -> Node:
    """What `node` gets its elements from, through reshapes. (copy(a, b) is b in the shape and type of a; dynamic shapes
    leave some of them in the graph.)"""
    while walk.is_op(node, *RESHAPES, aten.copy.default):
        source = node.args[1] if walk.is_op(node, aten.copy.default) else node.args[0]
        if not isinstance(source, Node):
            break
        node = source
    return node


def _same_elements(a: Node, b: Node) -> bool:
    one, other = _value(a), _value(b)
    return one.dtype == other.dtype and collectives.value_bytes(one) == collectives.value_bytes(other)


def _readers(node: Node) -> set[Node]:
    """The users of `node` that read its data, not just its sizes."""
    return {
        user
        for user in node.users
        if not walk.is_op(user, *METADATA) and not (walk.is_op(user, aten.copy.default) and user.args[1] is not node)
    }


def _why_not(copy: Node, buffer: Node, wait: Node, start: Node) -> str:
    """Why the collective keeps its own result; "" where it can write `buffer`."""
    name = collectives.op_name(start)
    in_place = name in IN_PLACE_FORMS
    if not in_place and compat.functional_op(OUT_FORMS.get(name, "")) is None:
        return "this torch has no form of it that writes a given tensor"
    if list(start.users) != [wait]:
        return "its result is used before it is waited for"
    readers = _readers(buffer) - {copy}
    if in_place:
        (sent,), reader = collectives.operands(start, ("input",)), start
        while walk.is_op(sent, *RESHAPES) and _readers(sent) == {reader}:
            sent, reader = sent.args[0], sent  # type: ignore[assignment]
        if sent is not buffer:
            return "it sends something else than what the buffer holds"
        readers.discard(reader)
    if readers:
        return f"{min(readers).name!r} reads the buffer, too"
    if aliases.leaves(wait):
        return "its result is also an output of the graph, which must not change with the buffer"
    ours, result = _value(buffer), _value(start)
    if not _same_elements(buffer, start):
        return "the buffer is of another type or size"
    if not in_place and ours.is_complex():
        return "torch's form of it that writes a given tensor does not take complex numbers"
    if not compat.is_contiguous(ours) or not compat.is_contiguous(result):
        return "the buffer is not contiguous"
    if not in_place and ours.dim() != result.dim() and any(isinstance(size, torch.SymInt) for size in result.shape):
        return "the buffer has another shape, whose sizes are not known"
    passed_by = OUT_FORMS.get(name) in compat_gather.PASSES_BY_PYTHON_GROUPS
    if passed_by and compat_gather.is_written_in_python(collectives.group_name(start)):
        return "this torch's form of it that writes a given tensor passes by a process group written in Python"
    return ""


def _value(node: Node) -> torch.Tensor:
    value = walk.example_value(node)
    assert isinstance(value, torch.Tensor), node
    return value


def _rewrite(copy: Node, buffer: Node, wait: Node, start: Node) -> None:
    graph, name = start.graph, collectives.op_name(start)
    form = compat.functional_op(IN_PLACE_FORMS.get(name) or OUT_FORMS[name])
    assert form is not None, name
    start.target = form
    if name in IN_PLACE_FORMS:
        result = _value(collectives.operands(start, ("input",))[0])
    else:
        target, result = buffer, _value(buffer)
        if result.dim() != _value(start).dim():  # stacked: the ranks are a dimension of their own
            result = result.view(_value(start).shape)
            with graph.inserting_before(start):
                target = graph.call_function(aten.view.default, (buffer, list(result.shape)))
            target.meta = {**start.meta, "val": result}
        start.kwargs = {**start.kwargs, "out": target}
    # The values share the buffer's memory now; Inductor's passes look there for what is aliased.
    start.meta["val"] = wait.meta["val"] = result
    copy.replace_all_uses_with(buffer)
    graph.erase_node(copy)
