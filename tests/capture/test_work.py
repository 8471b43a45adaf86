"""`dist.*(async_op=True)` and Work, compiled with fullgraph=True, against eager; on gloo, and on the process group that
starts nothing before `wait()`."""

import pytest
import torch
import torch.distributed as dist
import work_list_cases  # noqa: F401 (adds its cases)
from torch.utils._pytree import tree_leaves, tree_map_only
from work_cases import CASES

from tp_compile_pass import compat
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module", params=["gloo", "deferred"])
def ranks(request):
    with RankPool(2, request.param, setup=deferred.register, timeout=400) as pool:
        yield pool


def run(fn, grad):
    """What `fn` returns, what it left in its argument, and the argument's gradient."""
    x = torch.arange(24.0).reshape(4, 6) * (dist.get_rank() + 1) / 8 + 0.5
    x.requires_grad_(grad)
    out = fn(x)
    if grad:
        sum(o.sum() for o in tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad).backward()
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (out, x, x.grad))


def differences(names, inner):
    """{case: what is wrong with it} of compiled against eager."""
    wrong = {}
    for name in names:
        grad = name in WITH_GRAD
        if name in NOT_ON_GLOO and dist.get_backend() == "gloo":
            continue
        torch._dynamo.reset()
        expected = run(CASES[name](), grad)
        assert deferred.pending() == [], name
        compiled = torch.compile(CASES[name](), backend="tp_inductor", fullgraph=True, options={"tp.inner": inner})
        try:
            for _ in range(2):
                actual = run(compiled, grad)
                torch.testing.assert_close(actual, expected)
                assert deferred.pending() == [], deferred.pending()
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {str(error)[:1500]}"
            deferred.finish_pending()
    return wrong


WITH_GRAD = (
    "passed_on_by_an_autograd_function",
    "seen_by_autograd_as_in_eager",
    "parameter_with_requires_grad",
    "under_no_grad_and_checkpoint",
    "nn_functional",
    "nn_functional_lists",
)
P2P = ("p2p_batch", "p2p_single")
#: What a version cannot do, and why: functional send and receive came with torch 2.13.
NOT_HERE = () if compat.has_p2p_ops() else P2P
#: Gloo refuses these in eager (on some versions); NCCL and the deferred group take them.
NOT_ON_GLOO = (
    "all_gather_into_stacked",
    "a_scalar",
    "reduce_scatter_tensor_stacked",
    "reduce_scatter_and_all_to_all_lists",
    "nn_functional",
    "nn_functional_into_a_buffer",
    "nn_functional_lists",
)


def test_same_as_eager(ranks):
    for wrong in ranks.run(differences, [name for name in CASES if name not in NOT_HERE], "aot_eager"):
        assert wrong == {}


def test_same_as_eager_through_inductor(ranks):
    names = ["all_reduce", "a_view_of_a_graph_input", "into_slices_of_one_buffer", "two_in_flight_on_two_groups"]
    names += ["reduce_scatter_tensor", "broadcast", "passed_on_by_an_autograd_function"]
    for wrong in ranks.run(differences, names, "inductor"):
        assert wrong == {}


def _publish_without_waiting(results, targets):
    for i in range(len(results)):
        targets[i].copy_(results[i].view(targets[i].shape))


def differences_without_waits():
    from tp_compile_pass.capture.work import handle

    original, handle.publish = handle.publish, _publish_without_waiting
    try:
        return differences(["all_reduce", "reduce_scatter_tensor"], "aot_eager")
    finally:
        handle.publish = original


def test_these_tests_see_a_lost_wait():
    # Without the verifier, which would refuse the graph before any number is wrong.
    env = {"TP_COMPILE_PASS_VERIFY": "off"}
    with RankPool(2, "deferred", setup=deferred.register, timeout=400, env=env) as ranks:
        for wrong in ranks.run(differences_without_waits):
            assert list(wrong) == ["all_reduce", "reduce_scatter_tensor"]
            assert all("nan" in text for text in wrong.values())
