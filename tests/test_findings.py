"""A finding of the verifier that a test does not expect fails it, on ranks too."""

import warnings

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass.testing import RankError
from tp_compile_pass.verify.check import VerifyWarning


def leaving_in_flight(x):
    return torch.ops._c10d_functional.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)


def compiled(expected):
    run = torch.compile(leaving_in_flight, backend="tp_inductor", options={"tp.inner": "aot_eager"})
    with warnings.catch_warnings():
        if expected:
            warnings.simplefilter("ignore", VerifyWarning)
        torch.ops._c10d_functional.wait_tensor(run(torch.ones(2)))


def test_on_ranks(ranks2):
    ranks2.run(compiled, True)
    with pytest.raises(RankError, match="VerifyWarning: tp_inductor: leaves-in-flight"):
        ranks2.run(compiled, False)


def test_here():
    with pytest.raises(VerifyWarning):
        warnings.warn("a finding", VerifyWarning, stacklevel=1)
