"""The table of communication ops against the schemas of the installed torch, and the queries that read it."""

import pytest
import sympy
import torch
import torch.distributed._functional_collectives  # defines the ops
import torch.distributed.tensor  # defines _dtensor's
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from tp_compile_pass.ir import collectives, table
from tp_compile_pass.ir.table import ROWS, WAITS, CollectiveOp

c10d = torch.ops._c10d_functional


def schemas():
    return {s.name: s for s in torch._C._jit_get_all_schemas() if s.overload_name in ("", "default")}


def node_of(op, *args, **kwargs):
    """A node that calls `op`; tensors among the arguments become placeholders with that example value."""
    graph = Graph()
    count = 0

    def arg(value):
        nonlocal count
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            return [arg(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        count += 1
        placeholder = graph.placeholder(f"x{count}")
        placeholder.meta["val"] = value
        return placeholder

    node = graph.call_function(op, tuple(map(arg, args)), {k: arg(v) for k, v in kwargs.items()})
    values = [torch.empty_like(a, device="meta") if isinstance(a, torch.Tensor) else a for a in args]
    node.meta["val"] = values[0]
    return node


@pytest.mark.matrix
def test_each_row_names_arguments_that_the_op_has():
    known = schemas()
    present = sorted(set(ROWS) & set(known))
    assert len(present) >= 20
    for name in present:
        row = ROWS[name]
        formal = {a.name: a for a in known[name].arguments}
        for argument in (row.group, row.reduce_op, row.group_size, *row.reads, *row.writes, *row.holds):
            assert not argument or argument in formal, f"{name} has no argument {argument}"
        annotated = {a.name for a in known[name].arguments if a.alias_info is not None and a.alias_info.is_write}
        assert annotated <= set(row.writes) | {"out_splits_offsets"}, f"{name} writes {annotated}"


@pytest.mark.matrix
def test_every_communication_op_of_this_torch_is_in_the_table_or_taken_as_unknown():
    for name in schemas():
        space, _, op = name.partition("::")
        if space not in table.COMMUNICATING_NAMESPACES or not hasattr(getattr(torch.ops, space), op):
            continue
        node = Graph().call_function(getattr(getattr(torch.ops, space), op), ())
        known = [name in ROWS, name in WAITS, name in table.LOCAL, collectives.may_communicate(node)]
        assert sum(known) == 1, f"{name}: {known}"


@pytest.mark.matrix
def test_kind_group_and_reduction():
    node = node_of(c10d.all_reduce.default, torch.ones(4), "AVG", "17")
    assert collectives.collective_op(node).kind == "all_reduce"
    assert collectives.reduce_op(node) == "avg"
    assert collectives.group_name(node) == "17"
    assert str(collectives.group_size(node)) == "ranks_of_17"
    assert not collectives.is_wait(node)
    assert collectives.is_wait(node_of(c10d.wait_tensor.default, torch.ones(4)))
    assert collectives.collective_op(node_of(torch.ops.aten.relu.default, torch.ones(4))) is None


@pytest.mark.matrix
def test_legacy_ops_name_their_group_by_ranks():
    node = node_of(torch.ops.c10d_functional.all_reduce.default, torch.ones(4), "sum", "tag", [0, 1, 2], 3)
    assert collectives.collective_op(node).kind == "all_reduce"
    assert "[0, 1, 2]" in collectives.group_name(node)
    assert collectives.group_size(node) == 3


def test_reduce_op_given_as_an_enum():
    node = node_of(c10d.all_reduce.default, torch.ones(4), torch.distributed.ReduceOp.MAX, "0")
    assert collectives.reduce_op(node) == "max"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("op", "args", "result", "sent"),
    [
        ("all_reduce", (torch.ones(6, 4), "sum", "0"), (6, 4), 2 * 3 * 96 // 4),
        ("all_gather_into_tensor", (torch.ones(6, 4), 4, "0"), (24, 4), 3 * 96),
        ("reduce_scatter_tensor", (torch.ones(8, 4), "sum", 4, "0"), (2, 4), 3 * 32),
        ("all_to_all_single", (torch.ones(8, 4), [2] * 4, [2] * 4, "0"), (8, 4), 3 * 32),
        ("broadcast", (torch.ones(8, 4), 0, "0"), (8, 4), 128),
        ("all_reduce_coalesced", ([torch.ones(8), torch.ones(4)], "sum", "0"), None, 2 * 3 * 48 // 4),
    ],
)
def test_bytes_on_the_wire(op, args, result, sent):
    node = node_of(getattr(c10d, op).default, *args)
    if result:
        node.meta["val"] = torch.empty(result, device="meta")
    symbol = sympy.Symbol("ranks_of_0", positive=True, integer=True)
    assert collectives.wire_bytes(node).subs(symbol, 4) == sent


def test_bytes_on_the_wire_are_symbolic():
    def f(x):
        return c10d.all_gather_into_tensor(x, 4, "0")

    gm = make_fx(f, tracing_mode="symbolic")(torch.ones(6, 4))
    gather = next(n for n in gm.graph.nodes if collectives.collective_op(n))
    shape = gather.args[0].meta["val"].shape
    sent = collectives.wire_bytes(gather)
    assert len(sent.free_symbols) == 2
    assert sent == 3 * 4 * sympy.prod(collectives.expression(d) for d in shape)


def test_a_custom_op_with_a_group_argument_may_communicate(monkeypatch):
    with torch.library._scoped_library("tp_ir_test", "DEF") as lib:
        lib.define("reduce(Tensor x, str group_name) -> Tensor")
        lib.define("local(Tensor x, str name) -> Tensor")
        ops = torch.ops.tp_ir_test
        reduce = node_of(ops.reduce.default, torch.ones(2), "0")
        local = node_of(ops.local.default, torch.ones(2), "0")
        assert collectives.may_communicate(reduce)
        assert not collectives.may_communicate(local)

        monkeypatch.setattr(table, "_declared", set())
        table.declare_communication("tp_ir_test::local")
        assert collectives.may_communicate(local)

        monkeypatch.setattr(table, "ROWS", dict(ROWS))
        table.register("tp_ir_test::reduce", CollectiveOp("all_reduce", reads=("x",), waited="inside"))
        assert collectives.collective_op(reduce).kind == "all_reduce"
        assert not collectives.may_communicate(reduce)


def test_a_function_of_torch_distributed_may_communicate():
    graph = Graph()
    node = graph.call_function(torch.distributed.all_reduce, (graph.placeholder("x"),))
    assert collectives.may_communicate(node)
    assert not collectives.may_communicate(graph.call_function(torch.relu, (node,)))


def test_packets_of_dynamo_graphs_are_the_same_ops():
    gm = GraphModule({}, Graph())
    x = gm.graph.placeholder("x")
    node = gm.graph.call_function(c10d.all_reduce, (x, "sum"), {"group_name": "3"})
    assert collectives.group_name(node) == "3"
    assert collectives.operands(node, ("input",)) == [x]
