"""A pass that takes out communication on purpose: what it declares is expected, anything else is a mistake."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from valid_graphs import c10d

from tp_compile_pass.verify.check import BrokenByPass, PassCheck

GROUP = "0"


def two_and_one(x):
    """Two equal collectives and a third that depends on both."""
    a = c10d.wait_tensor(c10d.all_reduce(x * 2, "sum", GROUP))
    b = c10d.wait_tensor(c10d.all_reduce(x * 2, "sum", GROUP))
    return c10d.wait_tensor(c10d.all_gather_into_tensor(a + b, 2, GROUP))


@pytest.fixture
def graph():
    gm = make_fx(two_and_one, tracing_mode="fake")(torch.ones(4, 6))
    starts = [
        node for node in gm.graph.nodes if node.target in (c10d.all_reduce.default, c10d.all_gather_into_tensor.default)
    ]
    return gm, starts


def take_out(gm, node, instead):
    """Lets the readers of `node` read `instead`, behind its wait."""
    (wait,) = node.users
    wait.replace_all_uses_with(next(iter(instead.users)))
    gm.graph.erase_node(wait)
    gm.graph.erase_node(node)


def test_a_declared_replacement_is_expected(graph):
    gm, (first, second, _) = graph
    check = PassCheck(gm)
    replaced = {(id(gm), second.name): first.name}
    take_out(gm, second, first)
    check.after_pass(replaced)


def test_an_undeclared_one_is_lost(graph):
    gm, (first, second, _) = graph
    check = PassCheck(gm)
    take_out(gm, second, first)
    with pytest.raises(BrokenByPass, match="lost"):
        check.after_pass({})


def test_another_one_than_declared_is_lost(graph):
    gm, (first, second, third) = graph
    check = PassCheck(gm)
    replaced = {(id(gm), second.name): first.name}
    take_out(gm, third, first)
    with pytest.raises(BrokenByPass, match="lost"):
        check.after_pass(replaced)


def test_what_depended_on_it_must_still_depend_on_what_stands_for_it(graph):
    gm, (first, second, third) = graph
    check = PassCheck(gm)
    replaced = {(id(gm), second.name): first.name}
    (x,) = (node for node in gm.graph.nodes if node.op == "placeholder")
    take_out(gm, second, first)
    third.replace_input_with(third.args[0], x)
    with pytest.raises(BrokenByPass, match="edges"):
        check.after_pass(replaced)


def test_a_new_collective_stands_in_the_same_place(graph):
    gm, (first, second, _) = graph
    check = PassCheck(gm)
    with gm.graph.inserting_before(first):
        new = gm.graph.call_function(c10d.broadcast.default, (first.args[0], 0, GROUP))
    new.meta = dict(first.meta)
    replaced = {(id(gm), first.name): new.name}
    first.replace_all_uses_with(new)
    gm.graph.erase_node(first)
    check.after_pass(replaced)
    with gm.graph.inserting_after(second):
        late = gm.graph.call_function(c10d.broadcast.default, (second.args[0], 0, GROUP))
    late.meta = dict(second.meta)
    replaced = {(id(gm), new.name): late.name}  # not where it was
    (wait,) = new.users
    wait.replace_input_with(new, late)
    late.append(wait)
    gm.graph.erase_node(new)
    with pytest.raises(BrokenByPass):
        check.after_pass(replaced)
