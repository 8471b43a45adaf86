"""AsyncCollectiveTensors that enter a compiled region: outputs and gradients equal eager's, on gloo and on a process
group whose collectives have not even started before they are waited for."""

import boundary_cases
import pytest
import torch
from boundary_checks import compare, in_compiled_autograd, out_of_reach

from tp_compile_pass import compat
from tp_compile_pass.capture import boundary
from tp_compile_pass.options import TPOptions
from tp_compile_pass.passes.base import PassContext

pytestmark = pytest.mark.matrix

#: Inductor itself is in play here; elsewhere AOTAutograd with eager kernels is enough.
THROUGH_INDUCTOR = (
    "block",
    "residual_in_eager",
    "only_viewed",
    "view_and_value",
    "saved_for_backward",
    "mutated",
    "not_contiguous",
    "dynamic",
    "no_grad",
    "dtensor",
    "two_regions",
    "waited_by_the_region",
    "read_late_by_two_regions",
    "read_late_without_history",
    "read_late_without_training",
)


@pytest.mark.parametrize("name", boundary_cases.CASES)
def test_equals_eager_when_nothing_starts_before_its_wait(on_deferred, name):
    if reason := out_of_reach(name):
        pytest.skip(reason)
    assert on_deferred.run(compare, name) == [[], []]


@pytest.mark.parametrize("name", THROUGH_INDUCTOR)
@pytest.mark.parametrize("group", ["gloo", "deferred"])
def test_equals_eager_through_inductor(ranks2, on_deferred, name, group):
    assert (ranks2 if group == "gloo" else on_deferred).run(compare, name, "inductor") == [[], []]


def outcome(name, backend):
    """What compiling with another backend gives: "right", "wrong" or the exception's name."""
    try:
        return "wrong" if compare(name, backend=backend) else "right"
    except Exception as error:
        return type(error).__name__


def test_plain_inductor_still_loses_the_history(ranks2):
    """The bug this part exists for. Should this fail on a new torch, torch has fixed it."""
    found = {name: ranks2.run(outcome, name, "inductor")[0] for name in ("block", "residual_in_eager")}
    broken = {"block": "AttributeError", "residual_in_eager": "wrong"}
    assert found == (broken if compat.TORCH >= (2, 13) else {"block": "right", "residual_in_eager": "right"})


@pytest.mark.parametrize("backend", ["aot_eager", "tp_inductor"])
def test_compiled_autograd(on_deferred, backend):
    assert on_deferred.run(in_compiled_autograd, backend) == [[], []]


def compilations(make):
    """How many graphs a region compiles that gets an async tensor, a plain one, and both again."""
    count = []

    def counted(gm, inputs):
        count.append(gm)
        from tp_compile_pass import tp_inductor

        return tp_inductor(gm, inputs, options={"tp.inner": "aot_eager"})

    region = torch.compile(lambda o: o * 2 + 1, backend=counted)
    for step in range(4):
        o = make(boundary_cases.leaf(k=step))
        region(o if step % 2 == 0 else o * 1)
    return len(count)


@pytest.mark.parametrize("make", [boundary_cases.reduced, boundary_cases.sharded])
def test_sometimes_async_sometimes_plain_compiles_once_where_torch_guards_allow(ranks2, make):
    assert ranks2.run(compilations, make) == [1 if compat.TORCH >= (2, 15) else 2] * 2


def test_sometimes_async_sometimes_plain_compiles_twice_where_a_gradient_flows(ranks2):
    assert ranks2.run(compilations, boundary_cases.gathered) == [2, 2]


def test_where_no_input_is_async_the_compiled_function_itself_comes_back():
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    inputs = [torch.ones(2)]
    plan = boundary.plan(gm, inputs, PassContext(TPOptions(), "captured"))
    assert plan.wrap(gm.forward) == gm.forward and plan.inputs is inputs and plan.records == []
