"""Several functional all_gathers in flight on one gloo group: neither a crash nor a wrong value."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol

from tp_compile_pass import compat_gather
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix
c10d = torch.ops._c10d_functional

#: Without our kernel this many rounds end in a crash on torch 2.13.0; on 2.9.1 and 2.15.0 that takes more.
ROUNDS = 3000


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, timeout=400) as pool:
        yield pool


def four_apart(x):
    gathered = [c10d.all_gather_into_tensor(x * i, 2, "0") for i in range(1, 5)]
    return [c10d.wait_tensor(y) for y in gathered]


def wrong_rounds(rounds):
    # In the order of the program, which has the gathers in flight together. Scheduled, they would hide nothing.
    compiled = torch.compile(four_apart, backend="tp_inductor", fullgraph=True, options={"tp.inner": "aot_eager"})
    base, wrong = torch.arange(24.0).reshape(4, 6), 0
    for i in range(rounds):
        got = compiled(base * (dist.get_rank() + 1) + i)
        want = [torch.cat([base + i, base * 2 + i]) * factor for factor in range(1, 5)]
        wrong += any(not torch.equal(a, b) for a, b in zip(got, want, strict=True))
    return wrong


def test_many_rounds_of_gathers_in_flight(ranks):
    assert ranks.run(wrong_rounds, ROUNDS) == [0, 0]


def apart():
    """For each gather of a compiled function, whether our kernel took the way that does not corrupt memory."""
    compiled = torch.compile(four_apart, backend="tp_inductor", fullgraph=True)
    decide, taken = compat_gather._goes_apart, []

    def note(*args):
        taken.append(decide(*args))
        return taken[-1]

    compat_gather._goes_apart = note
    try:
        compiled(torch.ones(2, 2))
    finally:
        compat_gather._goes_apart = decide
    return taken


def test_compiled_gathers_go_apart(ranks):
    assert ranks.run(apart) == [[True] * 4 if compat_gather.CORRUPTS_MEMORY else []] * 2


def eager_gathers():
    """{what: result} and {what: error} of eager code."""
    rank, world = dist.get_rank(), dist.group.WORLD
    x = torch.arange(6.0).reshape(2, 3) + rank

    def inference():
        with torch.inference_mode():
            return funcol.all_gather_tensor(x, 0, world) + 0

    def trained():
        leaf = x.clone().requires_grad_()
        y = funcol.all_gather_tensor_autograd(leaf * 2, 0, world)
        (y * (rank + 1)).sum().backward()
        return y.detach() + 0, leaf.grad

    def raw(value, group="0"):
        return lambda: c10d.wait_tensor(c10d.all_gather_into_tensor(value, 2, group))

    cases = {
        "inference": inference,
        "trained": trained,
        "along the second dimension": lambda: funcol.all_gather_tensor(x.to(torch.bfloat16), 1, world) + 0,
        "integers": raw(x.int()),
        "transposed": raw(x.t()),
        "complex": raw(x * 1j),
        "a scalar": raw(x.sum()),
        "no such group": raw(x, "nope"),
        "registered by hand": raw(x, "by name alone"),
    }
    found: dict[str, object] = {}
    errors: dict[str, str] = {}
    for what, case in cases.items():
        try:
            found[what] = case()
        except Exception as error:
            errors[what] = f"{type(error).__name__}: {error}"[:60]
    return found, errors


def before_and_after():
    """The kernel is there from the moment the backend is looked up; it goes with its library."""
    torch.compile(torch.sin, backend="tp_inductor")
    dist.distributed_c10d._register_process_group("by name alone", dist.group.WORLD)
    after = eager_gathers()
    (library,) = compat_gather._kernels
    library._destroy()
    return eager_gathers(), after


@pytest.mark.skipif(not compat_gather.CORRUPTS_MEMORY, reason="torch's own kernel stays")
def test_eager_code_gets_the_same():
    with RankPool(2, timeout=400) as pool:
        for (before, errors_before), (after, errors_after) in pool.run(before_and_after):
            torch.testing.assert_close(after, before)
            assert errors_after == errors_before and {"a scalar", "no such group"} <= set(errors_after)


def after_a_graph_break():
    """Gathers that run in eager inside a compiled function: Dynamo must not take our kernel for user code."""
    torch.compile(torch.sin, backend="tp_inductor")

    def blocks(xs):
        out = []
        for x in xs:
            print(end="")
            out.append(funcol.all_gather_tensor(x, 0, dist.group.WORLD))
        return [o + 0 for o in out]

    graphs = []

    def noting(gm, inputs):
        graphs.append(gm.code)
        return gm

    xs, values = [torch.full((2,), dist.get_rank() + 1.0)] * 2, []
    for backend in (noting, "aot_eager", "tp_inductor"):
        torch._dynamo.reset()
        values.append([y.tolist() for y in torch.compile(blocks, backend=backend)(xs)])
    return values, [code for code in graphs if "all_gather_into_tensor_out" in code or "new_empty" in code]


def test_after_a_graph_break(ranks):
    for values, of_ours in ranks.run(after_a_graph_break):
        assert values == [[[1.0, 1.0, 2.0, 2.0]] * 2] * 3
        assert of_ours == []


def ways():
    """The method by which compiled gathers reach a group that is written in Python."""
    taken = []
    method = deferred.DeferredProcessGroup.allgather_into_tensor_coalesced

    def note(self, *args):
        taken.append(self.group_name)
        return method(self, *args)

    deferred.DeferredProcessGroup.allgather_into_tensor_coalesced = note
    deferred.DeferredProcessGroup.all_gather_single_coalesced = note
    compiled = torch.compile(four_apart, backend="tp_inductor", fullgraph=True)
    assert compiled(torch.ones(2, 2))[3].tolist() == [[4.0, 4.0]] * 4
    assert deferred.pending() == []
    return taken


def test_other_groups_are_used_as_before():
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        assert pool.run(ways) == [["0"] * 4] * 2
