"""A tensor that autograd saved and that a collective then writes: eager's numbers or an error, never others.

Eager itself does not notice (c10d bumps no version counter) and computes the gradient with the reduced values.
"""

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.matrix


def saved_by_a_product(x):
    t = x.sin()
    u = t * t
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    return u


def saved_as_a_result(x):
    t = x.exp()
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    return t * 1


def saved_and_written_through_detach(x):
    t = x.exp()
    work = dist.all_reduce(t.detach(), async_op=True)
    work.wait()
    return t * 1


def saved_input(x):
    y = x * 1
    u = x * x
    work = dist.all_reduce(x.detach(), async_op=True)
    work.wait()
    return u + y


def saved_after_the_wait(x):
    t = x * 2
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    return t * t


def result_and_gradient(fn):
    x = torch.arange(6.0).reshape(2, 3) / 8 * (dist.get_rank() + 1) + 0.5
    x.requires_grad_()
    out = fn(x)
    out.sum().backward()
    return out.detach(), x.grad


def as_eager_or_an_error(inner):
    raised = []
    for fn in (saved_by_a_product, saved_as_a_result, saved_and_written_through_detach, saved_input):
        torch._dynamo.reset()
        expected = result_and_gradient(fn)
        compiled = torch.compile(fn, backend="tp_inductor", fullgraph=True, options={"tp.inner": inner})
        try:
            actual = result_and_gradient(compiled)
        except Exception as error:
            assert "modified by an inplace operation" in str(error)
            raised.append(fn.__name__)
        else:
            torch.testing.assert_close(actual, expected)
    compiled = torch.compile(saved_after_the_wait, backend="tp_inductor", fullgraph=True, options={"tp.inner": inner})
    torch.testing.assert_close(result_and_gradient(compiled), result_and_gradient(saved_after_the_wait))
    return raised


def test_a_saved_tensor_that_is_reduced_later(ranks2):
    for raised in ranks2.run(as_eager_or_an_error, "aot_eager"):
        assert "saved_by_a_product" in raised
