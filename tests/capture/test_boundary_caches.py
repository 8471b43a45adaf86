"""What torch keeps of a region that was compiled for an async input: caches, artifacts, ahead-of-time results."""

import boundary_cases
import pytest
import torch
from boundary_checks import compare, same
from late_cases import late
from torch._dynamo.utils import counters

from tp_compile_pass import compat
from tp_compile_pass.report.record import clear_reports, reports
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix


def ranks(directory, **env):
    """Two ranks with this directory for torch's caches, whose collectives do not start before they are waited for."""
    env = {"TORCHINDUCTOR_CACHE_DIR": str(directory), **env}
    return RankPool(2, "deferred", setup=deferred.register, env=env)


def alternating(order, factor):
    for backend in order:
        torch._dynamo.reset()
        region = torch.compile(lambda o: o * factor + 1, backend=backend)
        o = boundary_cases.reduced(boundary_cases.leaf())
        torch.testing.assert_close(region(o), o * factor + 1)


def test_caches_are_not_shared_with_plain_inductor_which_resolves_async_inputs_itself(tmp_path):
    with ranks(tmp_path) as pool:
        pool.run(alternating, ("inductor", "tp_inductor"), 2)
        pool.run(alternating, ("tp_inductor", "inductor"), 3)


#: One waits at the door, with history; the other at its first use.
STORED = ("residual_in_eager", "read_late_without_training")


def stored():
    """Compiles the cases for the first time; the artifacts."""
    assert [compare(name, "inductor") for name in STORED] == [[], []]
    return torch.compiler.save_cache_artifacts()[0]


def brought_back(artifacts):
    """Runs the cases in another process that was given the artifacts; how many of their graphs were compiled anew."""
    torch.compiler.load_cache_artifacts(artifacts)
    counters.clear()
    assert [compare(name, "inductor") for name in STORED] == [[], []]
    return counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_miss"]


@pytest.mark.skipif(not hasattr(torch.compiler, "save_cache_artifacts"), reason="torch has no cache artifacts")
def test_cache_artifacts_bring_back_what_waits(tmp_path):
    with ranks(tmp_path / "first") as pool:
        (artifacts, _) = pool.run(stored)
    with ranks(tmp_path / "second") as pool:
        assert pool.run(brought_back, artifacts) == [(2, 0)] * 2


def multiplied(o, w):
    return (o @ w).relu()


def doubled(d):
    return (d * 2).to_local()


def precompiled():
    """Runs regions that torch would bring back whole from an earlier process: what the reports say of each."""
    clear_reports()
    w = boundary_cases.weight()
    x, o = boundary_cases.leaf(), boundary_cases.reduced(boundary_cases.leaf())
    history = boundary_cases.gathered(x)
    y = history + torch.compile(multiplied, backend="tp_inductor")(history, w)
    y.sum().backward()
    found = [y.detach(), x.grad, w.grad]
    expected_w, expected_x = boundary_cases.weight(), boundary_cases.leaf()
    history = boundary_cases.gathered(expected_x)
    expected = history + multiplied(history, expected_w)
    expected.sum().backward()
    assert all(map(same, found, [expected.detach(), expected_x.grad, expected_w.grad]))
    w = w.detach()
    assert same(torch.compile(late, backend="tp_inductor")(o, w), late(o, w))
    d = boundary_cases.sharded(boundary_cases.leaf().detach())
    assert same(torch.compile(doubled, backend="tp_inductor")(d), doubled(d))
    torch.compiler.save_cache_artifacts()
    return [[note for note in graph.notes if "precompile cache" in note] for r in reports() for graph in r.graphs]


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "caching_precompile"), reason="torch has no precompile cache")
def test_the_precompile_cache_never_brings_back_a_region_without_its_wait(tmp_path):
    for again in (False, True):
        with ranks(tmp_path, TORCH_CACHING_PRECOMPILE="1") as pool:
            found = [[len(of_graph) for of_graph in notes] for notes in pool.run(precompiled)]
        # What is left to torch comes back whole the second time, and is compiled no more.
        left_to_torch = ([] if again else [0]) if compat.TORCH >= (2, 15) else [1]
        assert found == [[1, 1, *left_to_torch]] * 2


def compiled_ahead(trained):
    """aot_compile for an async input: what a call gives, and how saving it is answered."""
    region = multiplied if trained else late
    inputs = (boundary_cases.gathered if trained else boundary_cases.reduced, boundary_cases.weight())
    x, w = boundary_cases.leaf(), inputs[1] if trained else inputs[1].detach()
    compiled = torch.compile(region, backend="tp_inductor", fullgraph=True).aot_compile(((inputs[0](x), w), {}))
    found, expected = compiled(inputs[0](x), w), region(inputs[0](x), w)
    right = same(found, expected)
    if trained:
        leaves = (x, w)
        right = right and all(map(same, *(torch.autograd.grad(y.sum(), leaves) for y in (found, expected))))
    try:
        compiled.save_compiled_function("unused")
    except RuntimeError as error:
        return right, str(error)
    return right, "saved"


@pytest.mark.skipif(compat.TORCH < (2, 13), reason="no aot_compile that keeps what a backend returned")
@pytest.mark.parametrize("trained", [False, True])
def test_ahead_of_time_works_here_and_saving_it_is_refused(on_deferred, trained):
    for right, answer in on_deferred.run(compiled_ahead, trained):
        assert right and "compiled for an AsyncCollectiveTensor" in answer
