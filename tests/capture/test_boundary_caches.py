"""What torch keeps of a region that was compiled for an async input: caches, artifacts, ahead-of-time results."""

import boundary_cases
import pytest
import torch
from boundary_checks import same
from late_cases import late

from tp_compile_pass import compat
from tp_compile_pass.testing import RankPool

pytestmark = pytest.mark.matrix


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
