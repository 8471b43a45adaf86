"""How the tests of the passes that take out communication run: on a group that fills results with NaN until they are
waited for, against eager, in inference and in training. Kernels are eager, since code generation is not the point."""

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass import reports
from tp_compile_pass.report.record import clear_reports
from tp_compile_pass.testing import RankPool, deferred


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        yield pool


def like_eager(fn, pass_name, options, training=False, dynamic=None):
    """Runs `fn` compiled and eager; returns (ops that communicate in the graph without or before the backward pass, the
    functions that the pass applied to, its reasons where it did not)."""
    torch._dynamo.reset()
    clear_reports()
    options = {"tp.inner": "aot_eager", "tp.strict": True, **options}
    start = torch.arange(24.0).reshape(4, 6) * (dist.get_rank() + 1)
    ours, theirs = (start.clone().requires_grad_(training) for _ in range(2))
    got = torch.compile(fn, backend="tp_inductor", fullgraph=True, options=options, dynamic=dynamic)(ours)
    if training:
        got.sum().backward()
    assert deferred.pending() == []
    expected = fn(theirs)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(ours, theirs)
    if training:
        expected.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    deferred.finish_pending()  # what eager code never waits for
    (graph,) = reports()[-1].graphs
    results = [result for result in graph.passes if result.name == pass_name]
    applied = [place.line.function for result in results for place in result.applied]
    skipped = [place.reason for result in results for place in result.skipped]
    ops = [c.op.split(".")[1] for c in graph.collectives if c.phase in ("inference", "forward")]
    return ops, applied, skipped


def count(ops, *names):
    """How often each op, in any of its forms, is among `ops`."""
    return tuple(sum(1 for op in ops if op.startswith(name)) for name in names)
