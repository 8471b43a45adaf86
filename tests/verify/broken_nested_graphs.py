"""Graphs broken on purpose, continued: nested graphs, point to point, and communication that nobody knows."""

import operator

import torch
import valid_graphs as p
from broken_graphs import before, drop, mutant, start, wait_of
from torch.fx import Graph, GraphModule
from valid_graphs import aten, c10d, calls, traced


# --------------------------------------------------------------------------------------------------- nested graphs
@mutant("lost")
def collective_lost_in_a_nested_graph():
    def edit(gm):
        body = gm.body
        reduce = start(body, c10d.all_reduce.default)
        drop(wait_of(reduce), reduce.args[0])
        body.graph.erase_node(reduce)

    return p.nested(p.body(p.reduce), 3), edit


@mutant("lost")
def nested_graph_called_once_too_few():
    def edit(gm):
        call = calls(gm, torch.ops.higher_order.tag_activation_checkpoint)[1]
        item = next(iter(call.users))
        item.replace_all_uses_with(call.args[1])
        gm.graph.erase_node(item)
        gm.graph.erase_node(call)

    return p.nested(p.body(p.reduce), 3), edit


@mutant("wait-lost", "leaves-in-flight")
def nested_graph_returns_in_flight():
    def edit(gm):
        wait = calls(gm.body, c10d.wait_tensor.default)[0]
        drop(wait, wait.args[0])

    return p.nested(p.body(p.reduce)), edit


@mutant("wait-lost", "unwaited-result")
def wait_lost_in_a_graph_that_runs_twice():
    def edit(gm):
        wait = calls(gm.body, c10d.wait_tensor.default)[0]
        drop(wait, wait.args[0])

    return p.nested(p.body(lambda x: p.reduce(x * 2)), 2), edit


@mutant("unwaited-result", "read-before-wait")
def waited_on_one_branch_only():
    def edit(gm):
        wait = calls(gm.on_false, c10d.wait_tensor.default)[0]
        drop(wait, wait.args[0])

    return p.branching(p.body(p.reduce), p.body(lambda x: p.reduce(x * 2))), edit


@mutant("lost")
def collective_lost_on_one_branch():
    def edit(gm):
        reduce = start(gm.on_true, c10d.all_reduce.default)
        drop(wait_of(reduce), reduce.args[0])
        gm.on_true.graph.erase_node(reduce)

    return p.branching(p.body(p.reduce), p.body(lambda x: p.reduce(x * 2))), edit


@mutant("reordered")
def collective_moved_out_of_a_branch():
    def edit(gm):
        reduce = start(gm.on_true, c10d.all_reduce.default)
        drop(wait_of(reduce), reduce.args[0])
        gm.on_true.graph.erase_node(reduce)
        x = next(iter(gm.graph.nodes))
        branch = calls(gm, torch.ops.higher_order.cond)[0]
        new = before(branch, c10d.all_reduce.default, x, "sum", "0")
        before(branch, c10d.wait_tensor.default, new)

    return p.branching(p.body(p.reduce), p.body(lambda x: p.reduce(x * 2))), edit


@mutant("read-before-wait")
def loop_leaves_in_flight_what_its_next_round_reads():
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = p.X
    condition, round_ = graph.get_attr("condition"), graph.get_attr("round")
    loop = graph.call_function(torch.ops.higher_order.while_loop, (condition, round_, (x,), ()))
    value = graph.call_function(operator.getitem, (loop, 0))
    value.meta["val"] = p.X
    graph.output((graph.call_function(c10d.wait_tensor.default, (value,)),))
    condition = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.sum() > 0, tracing_mode="fake")(p.X)
    gm = GraphModule({"condition": p.body(lambda x: torch.ones(())), "round": p.body(lambda x: p.reduce(x * 2))}, graph)

    def edit(gm):
        wait = calls(gm.round, c10d.wait_tensor.default)[0]
        drop(wait, wait.args[0])

    return gm, edit


# ----------------------------------------------------------------------------------------- point to point, unknown
def ring():
    def program(x):
        buffer = x.new_empty(x.shape)
        sent = c10d.isend(x, 1, 0, "0")
        got = c10d.irecv(buffer, 1, 0, "0")
        c10d.wait_tensor(sent)
        return c10d.wait_tensor(got) + x.add_(1)

    return torch.fx.experimental.proxy_tensor.make_fx(program, tracing_mode="fake")(p.X)


@mutant("read-before-wait", needs="irecv")
def received_buffer_read_before_the_wait():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[1]
        before(wait, aten.sin.default, start(gm, c10d.irecv.default).args[0])

    return ring(), edit


@mutant("overwrite-in-flight", needs="isend")
def sent_buffer_overwritten():
    def edit(gm):
        calls(gm, c10d.wait_tensor.default)[0].prepend(calls(gm, aten.add_.Tensor)[0])

    return ring(), edit


@mutant("changed", needs="isend")
def sent_to_another_rank():
    def edit(gm):
        send = start(gm, c10d.isend.default)
        send.args = (send.args[0], 2, 0, "0")

    return ring(), edit


@mutant("reordered", needs="isend")
def send_and_receive_swapped():
    def edit(gm):
        start(gm, c10d.isend.default).prepend(start(gm, c10d.irecv.default))

    return ring(), edit


def with_unknown():
    gm = traced(p.overlapped)
    wait = calls(gm, c10d.wait_tensor.default)[0]
    x = next(iter(gm.graph.nodes))
    before(wait, torch.ops.tp_verify_test.exchange.default, x, "0")
    return gm


@mutant("reordered")
def collective_moved_across_an_unknown_one():
    def edit(gm):
        unknown = calls(gm, torch.ops.tp_verify_test.exchange.default)[0]
        unknown.append(start(gm, c10d.all_reduce.default, 1))

    return with_unknown(), edit


@mutant("lost")
def unknown_communication_lost():
    def edit(gm):
        gm.graph.erase_node(calls(gm, torch.ops.tp_verify_test.exchange.default)[0])

    return with_unknown(), edit
