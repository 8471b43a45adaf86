"""Waits for what has been waited for already: gone from the code that runs, and every reader still waits."""

import re

import pytest
import torch
import torch.distributed as dist
from small_win_programs import wait_of_a_wait, waited_twice
from small_wins import ranks  # noqa: F401

from tp_compile_pass import reports
from tp_compile_pass.testing import deferred

pytestmark = pytest.mark.matrix


def generated(fn, training, dynamic):
    """The forward code of `fn`, which equals eager, and where the pass applied."""
    from torch._inductor.utils import run_and_get_code

    ours = (torch.arange(24.0).reshape(4, 6) * (dist.get_rank() + 1)).requires_grad_(training)
    theirs = ours.detach().clone().requires_grad_(training)
    compiled = torch.compile(fn, backend="tp_inductor", fullgraph=True, dynamic=dynamic, options={"tp.strict": True})
    with torch._inductor.config.patch(force_disable_caches=True):
        got, code = run_and_get_code(compiled, ours)
        torch.testing.assert_close(got, fn(theirs))
        if training:
            got.sum().backward()
            fn(theirs).sum().backward()
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert deferred.pending() == []
    (graph,) = reports()[-1].graphs
    places = [place for result in graph.passes if result.name == "redundant_waits" for place in result.applied]
    return code[0], {place.line.function for place in places}


@pytest.mark.parametrize(
    ("fn", "training", "dynamic"),
    [(waited_twice, False, None), (wait_of_a_wait, False, True), (wait_of_a_wait, True, None)],
)
def test_one_wait_is_enough(ranks, fn, training, dynamic):  # noqa: F811
    for code, applied in ranks.run(generated, fn, training, dynamic):
        assert len(re.findall(r"wait_tensor\.default\(", code)) == 1, code
        assert applied == {fn.__name__}
