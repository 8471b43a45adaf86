"""all_reduce of what is not contiguous: repaired where Inductor waits for another buffer than the one that was sent."""

import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.fx.experimental.proxy_tensor import make_fx

from tp_compile_pass import TPOptions, backend, compat, reports
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.passes.contiguous_inputs import WHAT, ContiguousInputs
from tp_compile_pass.passes.pipeline import run_passes
from tp_compile_pass.report.record import GraphReport
from tp_compile_pass.verify.check import findings
from tp_compile_pass.verify.trace import trace

pytestmark = pytest.mark.matrix
c10d = torch.ops._c10d_functional


def transposed(x):
    r = c10d.wait_tensor(c10d.all_reduce((x * 2).t(), "sum", "0"))
    return r @ torch.ones(4, 3) + r.sum(), r


def ignored(x):
    out = c10d.all_reduce((x * 2).t(), "sum", "0")
    c10d.wait_tensor(out)
    return out + 1


def sliced(x):
    return c10d.wait_tensor(c10d.all_reduce((x * 2)[:, 1:3], "sum", "0")).sum()


def waited_twice(x):
    out = c10d.all_reduce((x * 2).t(), "sum", "0")
    return c10d.wait_tensor(out) + c10d.wait_tensor(out)


def contiguous(x):
    return c10d.wait_tensor(c10d.all_reduce(x * 2, "sum", "0"))


def repaired(program, mode="fake"):
    gm = make_fx(program, tracing_mode=mode)(torch.ones(4, 6))
    report = GraphReport("", "inductor", {})
    run_passes((ContiguousInputs(),), gm, PassContext(TPOptions(strict=True), "inference"), report)
    return gm, report


@pytest.fixture
def affected(monkeypatch):
    """As on a torch that waits on the copy."""
    monkeypatch.setattr(compat, "WAITS_ON_A_COPY", True)


@pytest.mark.parametrize("program", [transposed, ignored, sliced])
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_the_collective_sends_a_contiguous_tensor(affected, program, mode):
    before = make_fx(program, tracing_mode=mode)(torch.ones(4, 6))
    assert [f.rule for f in findings(trace(before), "inference")] == ["copied-input"]
    gm, report = repaired(program, mode)
    assert len(report.rewrites) == 1 and not report.warnings
    assert findings(trace(gm), "inference") == []
    reduce = next(n for n in gm.graph.nodes if n.target == c10d.all_reduce.default)
    assert compat.is_contiguous(reduce.args[0].meta["val"])


def test_sizes_and_strides_of_the_result_stay():
    before = make_fx(transposed, tracing_mode="fake")(torch.ones(4, 6))
    gm, _ = repaired(transposed)
    for old, new in zip(*(list(g.graph.nodes)[-1].args[0] for g in (before, gm)), strict=True):
        assert new.meta["val"].shape == old.meta["val"].shape
        assert new.meta["val"].stride() == old.meta["val"].stride()


def test_a_transposed_input_is_not_copied():
    gm, _ = repaired(transposed)
    result = list(gm.graph.nodes)[-1].args[0][1].meta["val"]
    copies = [n for n in gm.graph.nodes if n.target == torch.ops.aten.clone.default]
    # Some versions trace the result of all_reduce as contiguous whatever its input; then the input has to be copied.
    assert len(copies) == (1 if result.is_contiguous() else 0)


def test_what_cannot_be_proved_is_left_alone():
    _, report = repaired(waited_twice)
    (skipped,) = report.passes[0].skipped
    assert skipped.reason == "it has 2 waits"
    _, report = repaired(contiguous)
    assert not report.passes


def race():
    """On a rank whose peer is late, the compiled result equals eager's; which torch repairs it, and does it notice."""
    group = dist.group.WORLD

    def fn(x):
        r = funcol.wait_tensor(funcol.all_reduce((x * 2).t(), "sum", group))
        return r @ torch.ones(4, 3) + r.sum(), r

    compiled = torch.compile(fn, backend="tp_inductor")
    x = torch.arange(24.0).reshape(4, 6) * (dist.get_rank() + 1)
    for _ in range(2):
        want = fn(x)
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(0.5)
        for got, wanted in zip(compiled(x), want, strict=True):
            torch.testing.assert_close(got, wanted)
    places = [place.what for report in reports()[-1:] for place in report.graphs[0].rewrites]
    return [what for what in places if what == WHAT]


def caught_without_the_pass():
    backend.GRAPH_PASSES = ()
    group = dist.group.WORLD

    def fn(x):
        return funcol.wait_tensor(funcol.all_reduce((x * 3).t(), "sum", group)).sum()

    try:
        torch.compile(fn, backend="tp_inductor")(torch.ones(4, 6))
    except Exception as error:
        return str(error)
    return ""


def test_a_late_peer_does_not_race(ranks2):
    rewrites = ranks2.run(race)
    assert rewrites == [[WHAT] if compat.WAITS_ON_A_COPY else []] * 2


def test_without_the_pass_the_verifier_catches_it(ranks2):
    for message in ranks2.run(caught_without_the_pass):
        assert ("copied-input" in message) == compat.WAITS_ON_A_COPY
