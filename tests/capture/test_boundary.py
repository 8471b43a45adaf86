"""AsyncCollectiveTensors that enter a compiled region: outputs and gradients equal eager's, on gloo and on a process
group whose collectives have not even started before they are waited for."""

import contextlib
import warnings

import boundary_cases
import late_cases  # noqa: F401  # files its cases
import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate

from tp_compile_pass import compat
from tp_compile_pass.capture import boundary, first_use
from tp_compile_pass.options import TPOptions
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.report.record import clear_reports, reports
from tp_compile_pass.testing import RankPool, deferred

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


@pytest.fixture(scope="module")
def on_deferred():
    with RankPool(2, "deferred", setup=deferred.register) as pool:
        yield pool


def out_of_reach(name):
    """Why this torch cannot compile the case for plain tensors either; "" where it can."""
    if name == "dtensor_only_viewed" and compat.TORCH >= (2, 9):
        return "a view of a DTensor input as output needs as_strided, which DTensor does not have"
    if name == "dtensor_dynamic" and compat.TORCH < (2, 6):
        return "DTensors with dynamic shapes do not compile"
    return ""


def compiling(inner, backend="tp_inductor", **defaults):
    options = {"tp.inner": inner, "tp.strict": True} if backend == "tp_inductor" else None
    return lambda region, **kwargs: torch.compile(region, backend=backend, options=options, **{**defaults, **kwargs})


def compare(name, inner="aot_eager", backend="tp_inductor"):
    """Runs a case in eager and compiled; the position of each result that differs."""
    run = boundary_cases.CASES[name]
    expected = settled(run(lambda region, **_: region))
    found = settled(run(compiling(inner, backend)))
    assert len(found) == len(expected)
    deferred.finish_pending()
    return [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if not same(a, b)]


def settled(results):
    """Gradients may be async tensors, too."""
    return [t.trigger_wait() if compat.is_async_collective(t) else t for t in results]


def same(a, b):
    return (a is None) == (b is None) and (a is None or torch.allclose(a, b, rtol=1e-4, atol=1e-5))


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


def without(what, name):
    """The case with one kind of wait taken out."""
    with pytest.MonkeyPatch.context() as patch:
        if what == "door":
            patch.setattr(boundary.compat, "resolve_async", lambda tensor, wait: tensor.elem)
        else:
            patch.setattr(first_use.FirstUse, "insert_wait", lambda self: None)
        return compare(name)


@pytest.mark.parametrize(("what", "name"), [("door", "block"), ("first use", "read_late_without_training")])
def test_a_wait_taken_out_is_seen(on_deferred, what, name):
    assert on_deferred.run(without, what, name)[0] != []


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


def late(o, w):
    return o + (w @ w).sum()


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
    "dtensor": (lambda o, w: w.sum() * o.to_local(), boundary.AT_THE_DOOR, "it is inside a DTensor"),
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


def in_compiled_autograd():
    from torch._dynamo import compiled_autograd

    def train(compile_, backward):
        x, w = boundary_cases.leaf(), boundary_cases.weight()
        o = boundary_cases.gathered(x)
        y = o + compile_(lambda o, w: (o @ w).sin())(o, w)
        with backward:
            y.pow(2).sum().backward()
        return y.detach(), x.grad, w.grad

    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable
    compile_ = compiling("aot_eager")
    expected = train(lambda region: region, contextlib.nullcontext())
    found = train(compile_, enable(lambda gm: torch.compile(gm, backend="aot_eager")))
    return [same(a, b) for a, b in zip(expected, found, strict=True)]


def test_compiled_autograd(on_deferred):
    assert on_deferred.run(in_compiled_autograd) == [[True] * 3] * 2


def compilations():
    """How many graphs a region compiles that gets an async tensor, a plain one, and both again."""
    count = []

    def counted(gm, inputs):
        count.append(gm)
        from tp_compile_pass import tp_inductor

        return tp_inductor(gm, inputs, options={"tp.inner": "aot_eager"})

    region = torch.compile(lambda o: o * 2 + 1, backend=counted)
    for step in range(4):
        o = boundary_cases.reduced(boundary_cases.leaf(k=step))
        region(o if step % 2 == 0 else o * 1)
    return len(count)


def test_sometimes_async_sometimes_plain_compiles_once_where_torch_guards_allow(ranks2):
    assert ranks2.run(compilations) == [1 if compat.TORCH >= (2, 15) else 2] * 2


def alternating(order, factor):
    for backend in order:
        torch._dynamo.reset()
        region = torch.compile(lambda o: o * factor + 1, backend=backend)
        o = boundary_cases.reduced(boundary_cases.leaf())
        torch.testing.assert_close(region(o), o * factor + 1)


def test_caches_are_not_shared_with_plain_inductor_which_resolves_async_inputs_itself(tmp_path):
    with RankPool(2, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}) as ranks:
        ranks.run(alternating, ("inductor", "tp_inductor"), 2)
        ranks.run(alternating, ("tp_inductor", "inductor"), 3)


def test_where_no_input_is_async_the_compiled_function_itself_comes_back():
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    inputs = [torch.ones(2)]
    plan = boundary.plan(gm, inputs, PassContext(TPOptions(), "captured"))
    assert plan.wrap(gm.forward) == gm.forward and plan.inputs is inputs and plan.records == []


def compiled_ahead():
    """aot_compile for an async input: what a call gives, and how saving it is answered."""
    o, w = boundary_cases.reduced(boundary_cases.leaf()), boundary_cases.weight().detach()
    compiled = torch.compile(late, backend="tp_inductor", fullgraph=True).aot_compile(((o, w), {}))
    right = same(compiled(boundary_cases.reduced(boundary_cases.leaf()), w), late(o, w))
    try:
        compiled.save_compiled_function("unused")
    except RuntimeError as error:
        return right, str(error)
    return right, "saved"


@pytest.mark.skipif(compat.TORCH < (2, 13), reason="no aot_compile that keeps what a backend returned")
def test_ahead_of_time_works_here_and_saving_it_is_refused(ranks2):
    right, answer = ranks2.run(compiled_ahead)[0]
    assert right and "compiled for an AsyncCollectiveTensor" in answer
