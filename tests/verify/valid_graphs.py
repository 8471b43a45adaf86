"""Small valid graphs that communicate, for the verifier's tests and for mutants made of them.

They are traced on fake tensors of eight ranks' shapes; nothing communicates and no process group exists.
"""

import operator

import torch
import torch._higher_order_ops.wrap  # defines tag_activation_checkpoint
import torch.distributed._functional_collectives  # defines the ops
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

c10d = torch.ops._c10d_functional
aten = torch.ops.aten
RANKS = 8


def reduce(x, op="sum", group="0"):
    return c10d.wait_tensor(c10d.all_reduce(x, op, group))


def gather(x, group="0"):
    return c10d.wait_tensor(c10d.all_gather_into_tensor(x, RANKS, group))


def scatter(x, group="0"):
    return c10d.wait_tensor(c10d.reduce_scatter_tensor(x, "sum", RANKS, group))


def mlp(x, up, down):
    """Sequence parallel: gather, two matmuls, scatter; and a reduction of a scalar."""
    hidden = torch.relu(gather(x) @ up)
    y = scatter(hidden @ down)
    return x + y, reduce((y * y).sum())


def overlapped(x, w):
    """Two collectives in flight at once, and compute between start and wait."""
    a = c10d.all_reduce(x * 2, "sum", "0")
    b = c10d.all_reduce(x * 3, "max", "0")
    y = x @ w
    return c10d.wait_tensor(a) + y, c10d.wait_tensor(b) * y


def result_ignored(x):
    """The wait's result is not used, as by those who call Work.wait()."""
    out = c10d.all_reduce(x * 2, "sum", "0")
    c10d.wait_tensor(out)
    return out.view(-1) + 1


def view_waited(x):
    out = c10d.all_reduce(x * 2, "sum", "0")
    flat = out.view(-1)
    c10d.wait_tensor(flat)
    return out.t() + 1


def two_groups(x):
    a = reduce(x, "sum", "tp")
    b = reduce(a * 2, "sum", "dp")
    return reduce(b + 1, "avg", "tp")


def in_place(x):
    buffer = x * 2
    work = c10d.all_reduce_(buffer, "sum", "0")
    y = x.sin()
    c10d.wait_tensor(work)
    return buffer + y


def into_a_buffer(x):
    out = x.new_empty(RANKS * x.shape[0], x.shape[1])
    c10d.all_gather_into_tensor_out(x, RANKS, "0", out=out)
    c10d.wait_tensor(out)
    return out.chunk(RANKS)[0] + x


def into_halves(x):
    """Two collectives that fill different parts of one buffer."""
    out = x.new_empty(2 * RANKS * x.shape[0], x.shape[1])
    low, high = out.chunk(2)
    c10d.all_gather_into_tensor_out(x, RANKS, "0", out=low)
    c10d.all_gather_into_tensor_out(x * 2, RANKS, "0", out=high)
    c10d.wait_tensor(low)
    c10d.wait_tensor(high)
    return out + 1


def coalesced(x):
    a, b = c10d.all_reduce_coalesced([x, x * 2], "sum", "0")
    return c10d.wait_tensor(a) + c10d.wait_tensor(b)


def exchange(x):
    out = c10d.all_to_all_single(x, [1] * RANKS, [1] * RANKS, "0")
    y = x * 2  # reading what is still sent is fine
    return c10d.wait_tensor(out) + y


def saved_input(x):
    """The input of a gather is overwritten after the wait."""
    out = gather(x)
    x.add_(1)
    return out


def sizes_in_flight(x):
    out = c10d.all_reduce(x, "sum", "0")
    like = torch.empty_like(out)
    c10d.wait_tensor(out)
    return out + like.fill_(0)


def only_waits(x):
    """A collective that was started outside."""
    return c10d.wait_tensor(x) + 1


X, W = torch.ones(8, 8), torch.ones(8, 8)
PROGRAMS = {
    mlp: (X, W, W),
    overlapped: (X, W),
    result_ignored: (X,),
    view_waited: (X,),
    two_groups: (X,),
    in_place: (X,),
    into_a_buffer: (X,),
    into_halves: (X,),
    coalesced: (X,),
    exchange: (X,),
    saved_input: (X,),
    sizes_in_flight: (X,),
    only_waits: (X,),
}


def traced(program):
    """A fresh graph of one of `PROGRAMS`."""
    return make_fx(program, tracing_mode="fake")(*PROGRAMS[program])


def calls(gm, op):
    """The nodes of `gm` that call `op`, in order."""
    return [node for node in gm.graph.nodes if node.op == "call_function" and node.target == op]


def nested(body, times=1):
    """A graph that calls `body` (a GraphModule of one argument) as a checkpoint does, `times` times in a row."""
    graph = Graph()
    value = graph.placeholder("x")
    value.meta["val"] = X
    for _ in range(times):
        inner = graph.get_attr("body")
        value = graph.call_function(torch.ops.higher_order.tag_activation_checkpoint, (inner, value))
        value = graph.call_function(operator.getitem, (value, 0))
        value.meta["val"] = X
    graph.output((value,))
    return GraphModule({"body": body}, graph)


def branching(on_true, on_false):
    """A graph of `torch.cond` over two GraphModules of one argument, and a use of its result."""
    graph = Graph()
    x, choice = graph.placeholder("x"), graph.placeholder("choice")
    x.meta["val"], choice.meta["val"] = X, torch.tensor(True)
    sides = graph.get_attr("on_true"), graph.get_attr("on_false")
    node = graph.call_function(torch.ops.higher_order.cond, (choice, *sides, (x,)))
    value = graph.call_function(operator.getitem, (node, 0))
    value.meta["val"] = X
    graph.output((graph.call_function(aten.add.Tensor, (value, 1)),))
    return GraphModule({"on_true": on_true, "on_false": on_false}, graph)


def body(program):
    """A traced program whose result is a list, as that of a nested graph is."""
    return make_fx(lambda x: (program(x),), tracing_mode="fake")(X)
