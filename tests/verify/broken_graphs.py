"""Graphs broken on purpose: for each, a valid graph, an edit that a careless pass might make, and what catches it."""

import torch
import valid_graphs as p
from valid_graphs import aten, c10d, calls, traced

MUTANTS = {}


def mutant(*rules, needs=""):
    """Registers a function that returns a valid graph and an edit of it, one of `rules` must catch. `needs`: an op that
    older versions of torch lack."""

    def register(function):
        if not needs or hasattr(c10d, needs):
            MUTANTS[function.__name__] = (function, rules)
        return function

    return register


def start(gm, op, number=0):
    return calls(gm, op)[number]


def wait_of(node):
    return next(user for user in node.users if user.target == c10d.wait_tensor.default)


def drop(node, replacement):
    node.replace_all_uses_with(replacement)
    node.graph.erase_node(node)


def before(node, op, *args, val=None):
    with node.graph.inserting_before(node):
        new = node.graph.call_function(op, args)
    first = next((a for a in args if isinstance(a, torch.fx.Node)), None)
    new.meta["val"] = val if val is not None else first.meta.get("val")
    return new


def last(gm):
    return next(iter(reversed(gm.graph.nodes)))


# ------------------------------------------------------------------------------------------------------------ waits
@mutant("unwaited-result", "wait-lost")
def wait_dropped():
    def edit(gm):
        reduce = start(gm, c10d.all_reduce.default)
        drop(wait_of(reduce), reduce)

    return traced(p.mlp), edit


@mutant("read-before-wait")
def wait_moved_after_a_use():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        last(gm).prepend(wait)

    return traced(p.result_ignored), edit


@mutant("read-before-wait")
def use_of_a_view_moved_before_the_wait():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        before(wait, aten.neg.default, before(wait, aten.t.default, wait.args[0]))

    return traced(p.view_waited), edit


@mutant("wait-lost", "unwaited-result")
def wait_for_the_other_collective():
    def edit(gm):
        first, second = calls(gm, c10d.wait_tensor.default)
        first.args = (second.args[0],)
        first.graph.erase_node(first) if not first.users else None
        for user in list(first.users):
            user.replace_input_with(first, start(gm, c10d.all_reduce.default))

    return traced(p.overlapped), edit


@mutant("waited-again")
def waited_twice():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        with gm.graph.inserting_after(wait):
            again = gm.graph.call_function(c10d.wait_tensor.default, (wait,))
        again.meta["val"] = wait.meta["val"]

    return traced(p.two_groups), edit


@mutant("leaves-in-flight", "wait-lost")
def result_returned_in_flight():
    def edit(gm):
        drop(wait_of(start(gm, c10d.all_gather_into_tensor.default)), start(gm, c10d.all_gather_into_tensor.default))

    return traced(p.saved_input), edit


@mutant("never-waited")
def started_and_forgotten():
    def edit(gm):
        x = start(gm, c10d.all_reduce.default).args[0]
        before(last(gm), c10d.all_reduce.default, x, "sum", "tp")

    return traced(p.two_groups), edit


@mutant("leaves-in-flight")
def graph_input_left_in_flight():
    def edit(gm):
        x = next(iter(gm.graph.nodes))
        before(last(gm), c10d.all_reduce_.default, x, "sum", "tp")

    return traced(p.two_groups), edit


@mutant("wait-lost", "unwaited-result")
def one_wait_of_a_coalesced_collective_dropped():
    def edit(gm):
        waits = calls(gm, c10d.wait_tensor.default)
        for wait in waits:
            drop(wait, wait.args[0])

    return traced(p.coalesced), edit


@mutant("unwaited-result", "read-before-wait")
def one_tensor_of_a_coalesced_collective_not_waited():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[1]
        drop(wait, wait.args[0])

    return traced(p.coalesced), edit


# ----------------------------------------------------------------------------------------------- memory in flight
@mutant("write-in-flight")
def result_written_in_flight():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        before(wait, aten.mul_.Tensor, wait.args[0], 2)

    return traced(p.in_place), edit


@mutant("write-in-flight")
def alias_of_the_result_written_in_flight():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        buffer = start(gm, c10d.all_reduce_.default).args[0]
        before(wait, aten.zero_.default, before(wait, aten.view.default, buffer, [-1]))

    return traced(p.in_place), edit


@mutant("read-before-wait")
def buffer_read_in_flight():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        before(wait, aten.sin.default, start(gm, c10d.all_reduce_.default).args[0])

    return traced(p.in_place), edit


@mutant("read-before-wait")
def part_of_the_out_buffer_read_in_flight():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        part = before(wait, aten.slice.Tensor, wait.args[0], 0, 0, 8)
        before(wait, aten.relu.default, part)

    return traced(p.into_a_buffer), edit


@mutant("overwrite-in-flight")
def input_overwritten_in_flight():
    def edit(gm):
        write = calls(gm, aten.add_.Tensor)[0]
        calls(gm, c10d.wait_tensor.default)[0].prepend(write)

    return traced(p.saved_input), edit


@mutant("overwrite-in-flight")
def alias_of_the_input_overwritten_in_flight():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        x = start(gm, c10d.all_to_all_single.default).args[0]
        before(wait, aten.fill_.Scalar, before(wait, aten.t.default, x), 0)

    return traced(p.exchange), edit


@mutant("overwrite-in-flight")
def input_of_a_scatter_overwritten_by_a_copy():
    def edit(gm):
        scatter = start(gm, c10d.reduce_scatter_tensor.default)
        before(wait_of(scatter), aten.copy_.default, scatter.args[0], scatter.args[0])

    return traced(p.mlp), edit


@mutant("write-in-flight")
def second_collective_into_the_buffer_in_flight():
    def edit(gm):
        gather = calls(gm, c10d.all_gather_into_tensor_out.default)[1]
        first = calls(gm, c10d.all_gather_into_tensor_out.default)[0]
        gather.kwargs = {"out": first.kwargs["out"]}

    return traced(p.into_halves), edit


@mutant("write-in-flight", "added")
def collective_in_place_on_a_buffer_in_flight():
    def edit(gm):
        wait = calls(gm, c10d.wait_tensor.default)[0]
        before(wait, c10d.broadcast_.default, wait.args[0], 0, "0")

    return traced(p.in_place), edit


# ------------------------------------------------------------------------------------------- order, loss, addition
def swap(gm, first, second):
    """Moves the collective `second` before `first`."""
    first.prepend(second)


@mutant("reordered")
def collective_swapped_with_another_of_its_group():
    def edit(gm):
        a, b = calls(gm, c10d.all_reduce.default)
        for node in (b.args[0], b):
            a.prepend(node)

    return traced(p.overlapped), edit


@mutant("reordered")
def collective_swapped_with_an_equal_one():
    gm = traced(p.overlapped)
    a, b = calls(gm, c10d.all_reduce.default)
    b.args = (b.args[0], "sum", "0")

    def edit(gm):
        for node in (b.args[0], b):
            a.prepend(node)

    return gm, edit


@mutant("lost")
def collective_lost():
    def edit(gm):
        reduce = start(gm, c10d.all_reduce.default, 1)
        drop(wait_of(reduce), reduce.args[0])
        gm.graph.erase_node(reduce)

    return traced(p.two_groups), edit


@mutant("added")
def collective_done_twice():
    def edit(gm):
        wait = wait_of(start(gm, c10d.all_reduce.default, 1))
        with gm.graph.inserting_after(wait):
            again = gm.graph.call_function(c10d.all_reduce.default, (wait, "sum", "dp"))
        with gm.graph.inserting_after(again):
            end = gm.graph.call_function(c10d.wait_tensor.default, (again,))
        again.meta["val"] = end.meta["val"] = wait.meta["val"]
        wait.replace_all_uses_with(end, delete_user_cb=lambda user: user is not again)

    return traced(p.two_groups), edit


@mutant("edges")
def collective_sends_what_came_before_another():
    def edit(gm):
        second = start(gm, c10d.all_reduce.default, 1)
        second.args[0].args = (next(iter(gm.graph.nodes)), 2)

    return traced(p.two_groups), edit


# ----------------------------------------------------------------------------------------------- arguments, shapes
def argument(program, op, position, value, number=0, kwargs=None):
    def edit(gm):
        node = start(gm, op, number)
        args = list(node.args)
        args[position] = value
        node.args = tuple(args)

    return traced(program), edit


@mutant("changed")
def wrong_group():
    return argument(p.two_groups, c10d.all_reduce.default, 2, "tp", number=1)


@mutant("changed")
def wrong_reduction():
    return argument(p.mlp, c10d.all_reduce.default, 1, "max")


@mutant("changed", "metadata")
def wrong_group_size():
    return argument(p.mlp, c10d.all_gather_into_tensor.default, 1, 4)


@mutant("changed")
def wrong_split_sizes():
    return argument(p.exchange, c10d.all_to_all_single.default, 2, [2, 0] + [1] * 6)


@mutant("changed")
def wrong_root():
    def program(x):
        return c10d.wait_tensor(c10d.broadcast(x, 0, "0"))

    gm = torch.fx.experimental.proxy_tensor.make_fx(program, tracing_mode="fake")(p.X)

    def edit(gm):
        start(gm, c10d.broadcast.default).args = (start(gm, c10d.broadcast.default).args[0], 3, "0")

    return gm, edit


@mutant("changed", "metadata")
def sends_another_dtype():
    def edit(gm):
        reduce = start(gm, c10d.all_reduce.default)
        value = reduce.args[0].meta["val"]
        reduce.args = (
            before(reduce, aten.to.dtype, reduce.args[0], torch.bfloat16, val=value.to(torch.bfloat16)),
            *reduce.args[1:],
        )

    return traced(p.two_groups), edit


@mutant("changed", "metadata")
def sends_another_shape():
    def edit(gm):
        reduce = start(gm, c10d.all_reduce.default)
        value = reduce.args[0].meta["val"]
        reduce.args = (before(reduce, aten.slice.Tensor, reduce.args[0], 0, 0, 4, val=value[:4]), *reduce.args[1:])

    return traced(p.two_groups), edit


@mutant("metadata")
def result_recorded_with_another_shape():
    def edit(gm):
        gather = start(gm, c10d.all_gather_into_tensor.default)
        gather.meta["val"] = gather.meta["val"][:8]

    return traced(p.mlp), edit


@mutant("metadata")
def result_recorded_with_another_dtype():
    def edit(gm):
        scatter = start(gm, c10d.reduce_scatter_tensor.default)
        scatter.meta["val"] = scatter.meta["val"].double()

    return traced(p.mlp), edit


@mutant("lost", "added")
def another_kind_of_collective():
    def edit(gm):
        reduce = start(gm, c10d.all_reduce.default)
        with gm.graph.inserting_before(reduce):
            new = gm.graph.call_function(c10d.broadcast.default, (reduce.args[0], 0, "tp"))
        new.meta["val"] = reduce.meta["val"]
        drop(reduce, new)

    return traced(p.two_groups), edit


@mutant("changed")
def tensor_missing_in_a_coalesced_collective():
    def edit(gm):
        reduce = start(gm, c10d.all_reduce_coalesced.default)
        reduce.args = (reduce.args[0][:1], *reduce.args[1:])

    return traced(p.coalesced), edit
