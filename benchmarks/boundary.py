"""What does it cost, per call, to hand an async tensor to a compiled region?

A small graph (one pointwise kernel on 256 elements), so that the call itself is what is measured. Each row alternates
between plain Inductor on a plain tensor and the variant, in one run.
"""

import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

ROUNDS, CALLS = 200, 100


def region(x):
    return x * 2 + 1


def late(x, w):
    return (w * 3).sin(), x * 2 + 1


def ready():
    """An async tensor whose collective is over, so that no communication is measured."""
    x = funcol.all_reduce(torch.ones(256), "sum", dist.group.WORLD)
    x.trigger_wait()
    return x


class _Ready(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return ready()

    @staticmethod
    def backward(ctx, grad):
        return grad


def microseconds(call):
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def interleaved(baseline, variant):
    """Median microseconds per call of both, and the median of their ratios round by round."""
    pairs = [(microseconds(baseline), microseconds(variant)) for _ in range(ROUNDS)]
    ratio = statistics.median(b / a for a, b in pairs)
    return (*(statistics.median(side) for side in zip(*pairs, strict=True)), ratio)


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    plain, w = torch.ones(256), torch.ones(256)
    leaf = torch.ones(256, requires_grad=True)
    trained, trained_async = leaf * 1, _Ready.apply(leaf)
    rows = {
        "no async input": (region, (plain,), (plain,)),
        "waited for at the door": (region, (plain,), (ready(),)),
        "waited for at the door, with history": (region, (trained,), (trained_async,)),
        "waited for at its first use": (late, (plain, w), (ready(), w)),
    }
    print(f"torch {torch.__version__}: microseconds per call")
    print(f"{'':38}{'inductor':>10}{'tp_inductor':>13}{'ratio':>8}")
    for name, (function, given, entering) in rows.items():
        torch._dynamo.reset()
        baseline = torch.compile(function, backend="inductor")
        ours = torch.compile(lambda *args, function=function: function(*args), backend="tp_inductor")
        baseline(*given), ours(*entering)
        a, b, ratio = interleaved(lambda f=baseline, x=given: f(*x), lambda f=ours, x=entering: f(*x))
        print(f"{name:38}{a:10.1f}{b:13.1f}{ratio:8.2f}")
    dist.destroy_process_group()
