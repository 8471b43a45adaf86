"""What a collective still sends is not overwritten, also where Inductor's reinplacing would do so."""

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass import compat
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix
c10d = torch.ops._c10d_functional


@pytest.fixture(scope="module")
def ranks():
    """Ranks on which an input that is written before the wait is an error."""
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        yield pool


def gathered_and_reduced(x):
    y = c10d.wait_tensor(c10d.broadcast(x * 2, 0, "0"))
    gathered = c10d.all_gather_into_tensor(y, 2, "0")
    reduced = c10d.wait_tensor(c10d.all_reduce(y, "sum", "0"))
    return c10d.wait_tensor(gathered) + 1, reduced + 1


def scattered_and_put(x):
    """An op that is not a collective writes in place."""
    y = x * 2
    scattered = c10d.reduce_scatter_tensor(y, "sum", 2, "0")
    index = torch.tensor([0, 2])
    put = torch.ops.aten.index_put(y, [index], torch.ones(2, 6))
    return c10d.wait_tensor(scattered) + 1, put + 1


def run(fn, backend, dynamic):
    """The error, if any; the results are eager's else."""
    x = torch.arange(24.0).reshape(4, 6) * (dist.get_rank() + 1)
    want = fn(x)
    error = ""
    with torch._inductor.config.patch(force_disable_caches=True):
        try:
            got = torch.compile(fn, backend=backend, fullgraph=True, dynamic=dynamic)(x)
            torch.testing.assert_close(got, want)
        except deferred.DeferredError as caught:
            error = str(caught)
    deferred.finish_pending()
    return error


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", [gathered_and_reduced, scattered_and_put], ids=lambda fn: fn.__name__)
def test_equals_eager(ranks, fn, dynamic):
    assert ranks.run(run, fn, "tp_inductor", dynamic) == ["", ""]


def test_plain_inductor_races_since_29(ranks):
    # So that we notice where torch changes it.
    for error in ranks.run(run, gathered_and_reduced, "inductor", False):
        raced = "an input of all_gather" in error and "was written before its wait" in error
        assert raced == (compat.TORCH >= (2, 9)), error
