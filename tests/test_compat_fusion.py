"""A kernel that reads what a collective delivers runs after the wait, also where Inductor's loop fusion forgets it."""

import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tp_compile_pass import compat
from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix
c10d = torch.ops._c10d_functional


@pytest.fixture(scope="module")
def ranks():
    """Ranks on which a result that is read before its wait is NaN."""
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        yield pool


def beside_a_norm(x, w):
    """The norm's loops and the sum's fit together only after their sizes were computed anew."""
    reduced = c10d.wait_tensor(c10d.all_reduce(x * 0.5, "sum", "0"))
    norm = F.layer_norm(w + x, (4,))
    return x + reduced + norm, (norm * 2) @ w


class ReduceGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, async_op=True).wait()
        return grad


def in_backward(x, w):
    """Found by the fuzzer: the sum was fused with what is sent, before the collective."""
    norm = F.layer_norm(x, (4,))
    hidden = torch.tanh(norm @ w)
    return x + hidden + ReduceGradient.apply(x * 0.5) * 0.5 + F.layer_norm(hidden, (4,)) + norm


def run(fn, backend, grad):
    """The generated code, and how far results and gradients are from eager's."""
    from torch._inductor.utils import run_and_get_code

    def call(fn):
        x, w = (torch.arange(16.0).sin().reshape(4, 4) * (dist.get_rank() + k) for k in (1, 2))
        out = fn(x.requires_grad_(grad), w.requires_grad_(grad))
        if grad:
            out.sum().backward()
        return [*(out if isinstance(out, tuple) else [out.detach()]), *([x.grad, w.grad] if grad else [])]

    want = call(fn)
    with torch._inductor.config.patch(force_disable_caches=True):
        got, code = run_and_get_code(call, torch.compile(fn, backend=backend, fullgraph=True))
    deferred.finish_pending()
    return code, [float((a - b).abs().max()) for a, b in zip(got, want, strict=True)]


def calls(code):
    """Kernels, starts and waits of one generated program, in order, by the first word of their names."""
    body = code[code.rindex("def call(") :]
    return re.findall(r"^ +(?:\w+ = )?(cpp_fused|torch\.ops\._c10d_functional\.wait_tensor)", body, re.MULTILINE)


@pytest.mark.parametrize("fn", [beside_a_norm, in_backward], ids=lambda fn: fn.__name__)
def test_equals_eager(ranks, fn):
    for _, errors in ranks.run(run, fn, "tp_inductor", fn is in_backward):
        assert max(errors) < 1e-5, errors


def test_plain_inductor_races_on_213_alone(ranks):
    # So that we notice where torch changes it.
    for code, errors in ranks.run(run, beside_a_norm, "inductor", False):
        order = [call.rpartition(".")[2] for call in calls(code[0])]
        raced = compat.TORCH == (2, 13)
        assert order == (
            ["cpp_fused", "cpp_fused", "wait_tensor"] if raced else ["cpp_fused", "wait_tensor", "cpp_fused"]
        )
        assert (max(errors) < 1e-5) != raced
