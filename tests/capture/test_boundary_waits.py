"""Where the wait for an async input happens, that each is needed, and what the report says of it."""

import contextlib
import warnings

import boundary_cases
import pytest
import torch
import torch.distributed._functional_collectives as funcol
import wrapped_cases
from boundary_checks import compare, compiling, in_compiled_autograd, out_of_reach
from late_cases import late
from torch.distributed.tensor import DTensor, Replicate

from tp_compile_pass import compat
from tp_compile_pass.capture import boundary, first_use
from tp_compile_pass.report.record import clear_reports, reports
from tp_compile_pass.testing import deferred

pytestmark = pytest.mark.matrix


def without_its_wait(check, *args):
    """What a check gives when its inputs enter as they are and nothing waits for them: the results that differ, or the
    exception's name."""
    resolve = boundary.compat.resolve_async
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundary.compat, "resolve_async", lambda tensor, wait: resolve(tensor, False))
        patch.setattr(boundary.compat, "torch_waits_for", lambda value: False)
        patch.setattr(first_use.FirstUse, "insert_wait", lambda self: None)
        try:
            return check(*args)
        except Exception as error:
            return type(error).__name__
        finally:
            with contextlib.suppress(deferred.DeferredError):
                deferred.finish_pending()


@pytest.mark.parametrize("name", boundary_cases.CASES)
def test_every_case_fails_without_its_wait(on_deferred, name):
    if reason := out_of_reach(name):
        pytest.skip(reason)
    assert [] not in on_deferred.run(without_its_wait, compare, name)


@pytest.mark.parametrize("backend", ["aot_eager", "tp_inductor"])
def test_compiled_autograd_fails_without_its_wait(on_deferred, backend):
    assert [] not in on_deferred.run(without_its_wait, in_compiled_autograd, backend)


#: input → (how it is made, how many async tensors it holds).
HOLDERS = {
    "plain": (boundary_cases.gathered, 1),
    "DTensor": (boundary_cases.sharded, 1),
    "pair of plain ones": (wrapped_cases.Pair.apply, 2),
    "pair of DTensors": (wrapped_cases.PairOfDTensors.apply, 2),
}


def waits(kind, trained):
    """How often a compiled region waits when it is called with an input that holds async tensors."""
    make, region = HOLDERS[kind][0], compiling("aot_eager")(lambda t: (t * t).sin() * t)
    with torch.set_grad_enabled(trained):
        region(make(boundary_cases.leaf()))
        wait, calls = funcol.wait_tensor, []
        given = make(boundary_cases.leaf())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(funcol, "wait_tensor", lambda tensor: (calls.append(tensor), wait(tensor))[1])
            region(given)
    graphs = [graph for report in reports() for graph in report.graphs]
    return len(calls), [c.op for graph in graphs for c in graph.collectives]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("kind", HOLDERS)
def test_each_async_tensor_is_waited_for_exactly_once(on_deferred, kind, trained):
    assert on_deferred.run(waits, kind, trained) == [(HOLDERS[kind][1], [])] * 2


_seen = []


def _probe_op():
    if not hasattr(torch.ops.tp_boundary_tests, "probe"):

        @torch.library.custom_op("tp_boundary_tests::probe", mutates_args=())
        def probe(x: torch.Tensor) -> torch.Tensor:
            _seen.append(len(deferred.pending()))
            return x.clone()

        probe.register_fake(torch.empty_like)
    return torch.ops.tp_boundary_tests.probe


def in_flight_during(inner, history):
    """How many collectives are pending when the region does other work, and when it has read its async input."""
    probe = _probe_op()

    def region(o, w):
        other = probe(w @ w)
        return o.view(-1, 6).sin(), other, probe(w + other)

    x = boundary_cases.leaf()
    o = boundary_cases.collected(x) if history else boundary_cases.reduced(x)
    w = boundary_cases.weight().detach()
    compiled = compiling(inner)(region)
    _seen.clear()
    clear_reports()
    result = compiled(o, w)[0]
    torch.testing.assert_close(result.detach(), o.detach().view(-1, 6).sin())
    if history:
        result.sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    (entered,) = reports()[0].graphs[0].boundary
    return _seen[0], entered.handling, entered.reason


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize("history", [True, False])
def test_other_work_is_done_while_the_collective_is_in_flight(on_deferred, inner, history):
    pending, handling, reason = on_deferred.run(in_flight_during, inner, history)[0]
    if history:
        assert (pending, handling, reason) == (0, boundary.AT_THE_DOOR, "a gradient has to pass the wait")
    else:
        assert (pending, handling, reason) == (1, boundary.AT_FIRST_USE, "")


def in_no_grad(region):
    def run(o, w):
        with torch.no_grad():
            return region(o, w)

    return run


def written(o, w):
    v = w @ w
    o.add_(1)
    return o * v.sum()


def written_in_checkpoint(o, w):
    v = w @ w
    return torch.utils.checkpoint.checkpoint(torch.relu_, o, use_reentrant=False) * v.sum()


#: region → (handling, reason) of an input without history.
HANDLED = {
    "late": (late, boundary.AT_FIRST_USE, ""),
    "late, in no_grad": (in_no_grad(late), boundary.AT_FIRST_USE, ""),
    "early": (lambda o, w: (o + w.sum()) @ w, boundary.AT_FIRST_USE, ""),
    "first": (lambda o, w: (o + 1) @ w, boundary.AT_THE_DOOR, "the region's first work reads it"),
    "returned": (lambda o, w: (w @ w, o.t()), boundary.AT_THE_DOOR, "the region returns it or a view of it"),
    "written": (written, boundary.AT_THE_DOOR, "the region writes to it"),
    "checkpoint": (written_in_checkpoint, boundary.AT_THE_DOOR, "nested graph that writes"),
    "view of it": (late, boundary.AT_THE_DOOR, "another input shares its memory"),
    "with history": (late, boundary.AT_THE_DOOR, "a gradient has to pass the wait"),
    "trained": (late, boundary.AT_THE_DOOR, "the region is trained"),
    "dtensor": (
        lambda o, w: w.sum() * o.to_local(),
        boundary.BY_TORCH if compat.TORCH >= (2, 15) else boundary.AT_THE_DOOR,
        "inside a DTensor",
    ),
    "CUDA graphs": (late, boundary.AT_THE_DOOR, "CUDA graphs copy their inputs first"),
}


def handled(name):
    region = HANDLED[name][0]
    o, w = boundary_cases.reduced(boundary_cases.leaf()), boundary_cases.weight().detach()
    options = {"tp.inner": "aot_eager"}
    if name == "with history":
        o = boundary_cases.collected(boundary_cases.leaf())
    if name == "trained":
        w.requires_grad_()
    if name == "view of it":
        o, w = o.view(-1), o[:, :4]
    if name == "dtensor":
        o = DTensor.from_local(o, boundary_cases.mesh(), [Replicate()], run_check=False)
    if name == "CUDA graphs":
        options["triton.cudagraphs"] = True
    clear_reports()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an option of Inductor's has no effect with another inner compiler
        torch.compile(region, backend="tp_inductor", options=options)(o, w)
    return [(b.handling, b.reason, b.line.code if b.line else "") for b in reports()[0].graphs[0].boundary]


@pytest.mark.parametrize("name", HANDLED)
def test_the_report_says_how_each_input_was_handled(ranks2, name):
    _, handling, reason = HANDLED[name]
    found = ranks2.run(handled, name)[0]
    assert len(found) == (2 if name == "view of it" else 1)
    for entered in found:
        assert entered[0] == handling and reason in entered[1] and bool(reason) == bool(entered[1])
