"""Compiles `boundary_cases` and compares with eager."""

import contextlib

import boundary_cases
import late_cases  # noqa: F401  # files its cases
import torch
import wrapped_cases  # noqa: F401

from tp_compile_pass import compat
from tp_compile_pass.testing import deferred


def out_of_reach(name):
    """Why this torch cannot compile the case for plain tensors either; "" where it can."""
    if name == "dtensor_only_viewed" and compat.TORCH >= (2, 9):
        return "a view of a DTensor input as output needs as_strided, which DTensor does not have"
    if name == "dtensor_dynamic" and compat.TORCH < (2, 6):
        return "DTensors with dynamic shapes do not compile"
    return ""


def compiling(inner, backend="tp_inductor", **defaults):
    options = {"tp.inner": inner, "tp.strict": True} if backend == "tp_inductor" else None
    return lambda region, **kwargs: torch.compile(region, backend=backend, options=options, **{**defaults, **kwargs})


def compare(name, inner="aot_eager", backend="tp_inductor"):
    """Runs a case in eager and compiled; the position of each result that differs."""
    run = boundary_cases.CASES[name]
    expected = settled(run(lambda region, **_: region))
    found = settled(run(compiling(inner, backend)))
    assert len(found) == len(expected)
    deferred.finish_pending()
    return [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if not same(a, b)]


def settled(results):
    """Gradients may be async tensors, too."""
    return [t.trigger_wait() if compat.is_async_collective(t) else t for t in results]


def same(a, b):
    return (a is None) == (b is None) and (a is None or torch.allclose(a, b, rtol=1e-4, atol=1e-5))


def in_compiled_autograd(backend):
    """Trains a compiled region under compiled autograd, whose graphs `backend` compiles; what differs from eager."""
    from torch._dynamo import compiled_autograd

    def train(compile_, backward):
        x, w = boundary_cases.leaf(), boundary_cases.weight()
        o = boundary_cases.gathered(x)
        y = o + compile_(lambda o, w: (o @ w).sin())(o, w)
        with backward:
            y.pow(2).sum().backward()
        return y.detach(), x.grad, w.grad

    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable
    expected = train(lambda region: region, contextlib.nullcontext())
    found = train(compiling("aot_eager"), enable(lambda gm: compiling("aot_eager", backend)(gm)))
    return [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if not same(a, b)]
