"""The pass on hand-built graphs: what it takes for a call site, and what it leaves alone."""

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from tp_compile_pass.capture.async_tensor import WaitCallSites
from tp_compile_pass.options import TPOptions
from tp_compile_pass.passes.base import PassContext


class OwnTensor(torch.Tensor):
    """A subclass of the user's with a `wait` of its own."""


def graph_calling(method, value, nested=False):
    """A GraphModule whose only call is `x.method()`, with `value` recorded for `x`."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    if value is not None:
        x.meta["example_value"] = value
    call = graph.call_method(method, (x,))
    call.meta["stack_trace"] = 'File "model.py", line 12, in forward\n    return out.wait()'
    call.meta["example_value"] = torch.empty(2)
    graph.output(graph.call_function(torch.sin, (call,)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    if not nested:
        return gm
    outer = torch.fx.Graph()
    y = outer.placeholder("y")
    body = outer.get_attr("body")
    outer.output(outer.call_function(torch.ops.higher_order.cond, (True, body, body, [y])))
    return torch.fx.GraphModule({"body": gm}, outer)


def apply(gm):
    context = PassContext(TPOptions(), "captured")
    result = WaitCallSites().apply(gm, context)
    context.keep()
    return result


def act():
    return AsyncCollectiveTensor(torch.empty(2))


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["wait", "trigger_wait"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_call_site_becomes_a_wait_that_keeps_its_metadata(method, nested):
    gm = graph_calling(method, act(), nested)
    (place,) = apply(gm).applied
    assert place.what == f".{method}()"
    assert (place.line.file, place.line.line, place.line.code) == ("model.py", 12, "return out.wait()")
    inner = gm.body if nested else gm
    (wait,) = [n for n in inner.graph.nodes if n.target is torch.ops._c10d_functional.wait_tensor.default]
    assert wait.meta["stack_trace"].endswith("return out.wait()")
    assert wait.meta["example_value"].shape == (2,)
    assert "wait_tensor" in inner.code, "a nested graph is called: its code has to follow its graph"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.empty(2), "the receiver is a Tensor"),
        (torch.empty(2).as_subclass(OwnTensor), "the receiver is a OwnTensor"),
        (torch.futures.Future(), "the receiver is a Future"),
        (None, "tracing recorded no value"),
    ],
)
def test_a_wait_of_something_else_is_left_alone_with_the_reason(value, reason):
    gm = graph_calling("wait", value)
    before = str(gm.graph)
    result = apply(gm)
    assert not result.applied
    assert result.skipped[0].reason.startswith(reason)
    assert str(gm.graph) == before


@pytest.mark.parametrize("method", ["sin", "view_as", "wait_stream"])
def test_other_methods_are_not_looked_at(method):
    result = apply(graph_calling(method, act()))
    assert (result.applied, result.skipped) == ([], [])


def test_a_module_called_wait_is_not_a_call_site():
    graph = torch.fx.Graph()
    graph.output(graph.call_module("wait", (graph.placeholder("x"),)))
    gm = torch.fx.GraphModule({"wait": torch.nn.Identity()}, graph)
    result = apply(gm)
    assert (result.applied, result.skipped) == ([], [])
