"""Results that go straight into a buffer of the caller's: no copy that eager does not make, and eager's numbers.

On the process group that fills outputs with NaN until they are waited for: a result that is read too early shows.
"""

import re

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass import compat, compat_gather, reports
from tp_compile_pass.report.record import clear_reports
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        yield pool


@pytest.fixture(scope="module")
def gloo():
    """For what does not reach a process group written in Python."""
    with RankPool(2, timeout=400) as pool:
        yield pool


# What each starts on x, of shape (4, 6), and a buffer of the shape in SHAPES.
def gather(x, buffer):
    return dist.all_gather_into_tensor(buffer, x, async_op=True)


def gather_stacked(x, buffer):
    return dist.all_gather_into_tensor(buffer, x, async_op=True)


def scatter(x, buffer):
    return dist.reduce_scatter_tensor(buffer, x, async_op=True)


def reduce(x, buffer):
    return dist.all_reduce(buffer, async_op=True)


def reduce_flat(x, buffer):
    return dist.all_reduce(buffer.view(-1), async_op=True)


def broadcast(x, buffer):
    return dist.broadcast(buffer, 1, async_op=True)


def exchange(x, buffer):
    return dist.all_to_all_single(buffer, x, async_op=True)


SHAPES = {
    gather: (8, 6),
    gather_stacked: (2, 4, 6),
    scatter: (2, 6),
    reduce: (4, 6),
    reduce_flat: (4, 6),
    broadcast: (4, 6),
    exchange: (4, 6),
}
IN_PLACE = {
    gather: "all_gather_into_tensor_out",
    gather_stacked: "all_gather_into_tensor_out",
    scatter: "reduce_scatter_tensor_out",
    reduce: "all_reduce_",
    reduce_flat: "all_reduce_",
    broadcast: "broadcast_",
}
if compat.functional_op("reduce_scatter_tensor_out") is None:
    del IN_PLACE[scatter]


def waiting(start):
    def fn(x, buffer):
        work = start(x, buffer)
        y = x.sin()
        work.wait()
        return buffer.sum() + y

    return fn


def inputs(start):
    x = torch.arange(24.0).reshape(4, 6) * (dist.get_rank() + 1)
    return x, torch.arange(48.0)[: torch.Size(SHAPES[start]).numel()].reshape(SHAPES[start]) + dist.get_rank()


def compiled_like_eager(start, dynamic):
    """The generated code and the report, of a call that equals eager's in result and buffer."""
    from torch._inductor.utils import run_and_get_code

    clear_reports()
    expected = inputs(start)
    if start is gather_stacked and dist.get_backend() == "gloo":  # which refuses the shape in eager, on some versions
        result = waiting(gather)(expected[0], expected[1].view(8, 6))
    else:
        result = waiting(start)(*expected)
    actual = inputs(start)
    compiled = torch.compile(waiting(start), backend="tp_inductor", fullgraph=True, dynamic=dynamic)
    with torch._inductor.config.patch(force_disable_caches=True):
        got, code = run_and_get_code(compiled, *actual)
    torch.testing.assert_close((got, *actual), (result, *expected))
    assert deferred.pending() == []
    (graph,) = reports()[-1].graphs
    return "\n".join(code), [p for p in graph.passes if p.name == "in_place_results"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("start", SHAPES, ids=lambda start: start.__name__)
def test_no_copy_that_eager_does_not_make(ranks, gloo, start, dynamic):
    pool = gloo if IN_PLACE.get(start) in compat_gather.PASSES_BY_PYTHON_GROUPS else ranks
    for code, results in pool.run(compiled_like_eager, start, dynamic):
        copies = len(re.findall(r"copy_", code))
        if start not in IN_PLACE or (dynamic and start is gather_stacked):
            assert results[0].skipped[0].reason, results
            continue
        assert f"_c10d_functional.{IN_PLACE[start]}.default(" in code and copies == 0, code
        if start is not reduce:
            assert [place.line.function for place in results[0].applied] == [start.__name__]


# ------------------------------------------------------------------------------------------- what it leaves alone
@pytest.mark.skipif(not compat_gather.PASSES_BY_PYTHON_GROUPS, reason="this torch asks the group")
def test_no_form_that_passes_by_a_group_written_in_python(ranks):
    for code, results in ranks.run(compiled_like_eager, gather, False):
        assert "all_gather_into_tensor_out" not in code
        assert "written in Python" in results[0].skipped[0].reason


def read_before(x, buffer):
    y = buffer.sin()
    dist.all_gather_into_tensor(buffer, x, async_op=True).wait()
    return y + 1


def handed_out(x, buffer):
    dist.all_gather_into_tensor(buffer, x, async_op=True).wait()
    return buffer.view(-1)


def own_part_sent(x, buffer):
    mine = buffer[4 * dist.get_rank() :][:4]
    dist.all_gather_into_tensor(buffer, mine.clone(), async_op=True).wait()
    return buffer.sum()


LEFT_ALONE = {
    read_before: "reads the buffer",
    handed_out: "output of the graph",
    own_part_sent: "reads the buffer",
}


def reasons(fn):
    clear_reports()
    expected, actual = inputs(gather), inputs(gather)
    result = fn(*expected)
    with torch._inductor.config.patch(force_disable_caches=True):  # what is loaded from a cache is not looked at
        got = torch.compile(fn, backend="tp_inductor", fullgraph=True)(*actual)
    torch.testing.assert_close((got, *actual), (result, *expected))
    (graph,) = reports()[-1].graphs
    return [place.reason for p in graph.passes if p.name == "in_place_results" for place in p.skipped]


@pytest.mark.parametrize("fn", LEFT_ALONE, ids=lambda fn: fn.__name__)
def test_left_alone_with_a_reason(ranks, fn):
    for found in ranks.run(reasons, fn):
        assert len(found) == 1 and LEFT_ALONE[fn] in found[0]


def complex_numbers():
    def fn(x, buffer):
        dist.all_gather_into_tensor(buffer, x, async_op=True).wait()
        return buffer.abs()

    clear_reports()
    x, buffers = torch.ones(2, dtype=torch.complex64) * (dist.get_rank() + 1j), torch.zeros(2, 4, dtype=torch.complex64)
    result = fn(x, buffers[0])
    with torch._inductor.config.patch(force_disable_caches=True):
        got = torch.compile(fn, backend="tp_inductor", fullgraph=True)(x, buffers[1])
    torch.testing.assert_close((got, buffers[1]), (result, buffers[0]))
    (graph,) = reports()[-1].graphs
    return [place.reason for p in graph.passes if p.name == "in_place_results" for place in p.skipped]


@pytest.mark.skipif(compat.TORCH < (2, 7), reason="functional collectives of this torch take no complex numbers")
def test_complex_numbers_are_left_alone(gloo):
    for (reason,) in gloo.run(complex_numbers):
        assert "complex" in reason


# ------------------------------------------------------------------------------------------------------- training
class GatherInto(torch.autograd.Function):
    """Sequence parallelism as Megatron writes it: gathers into a buffer that all layers share, and saves its input."""

    @staticmethod
    def forward(ctx, x, w, buffer):
        ctx.save_for_backward(x, w)
        dist.all_gather_into_tensor(buffer, x, async_op=True).wait()
        return buffer @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        whole = x.new_empty(2 * x.shape[0], *x.shape[1:])
        work = dist.all_gather_into_tensor(whole, x, async_op=True)
        grad_whole = grad @ w.t()
        work.wait()
        mine = torch.empty_like(x)
        dist.reduce_scatter_tensor(mine, grad_whole.contiguous(), async_op=True).wait()
        return mine, whole.t() @ grad, None


def trained_like_eager():
    def layers(x, weights, buffer):
        for w in weights:
            x = GatherInto.apply(x, w, buffer)[:4].sin()
        return x

    def step(fn):
        torch.manual_seed(dist.get_rank())
        x = torch.randn(4, 6, requires_grad=True)
        weights = [torch.randn(6, 6, requires_grad=True) for _ in range(2)]
        buffer = torch.zeros(8, 6)
        out = fn(x, weights, buffer)
        buffer.fill_(9.0)  # the next micro-batch writes it before this one's backward
        out.sum().backward()
        return out.detach(), x.grad, *(w.grad for w in weights)

    torch.testing.assert_close(step(torch.compile(layers, backend="tp_inductor", fullgraph=True)), step(layers))


def test_a_shared_buffer_is_written_in_training(ranks):
    ranks.run(trained_like_eager)
