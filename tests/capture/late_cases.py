"""More of `boundary_cases`: where the region waits itself, or could wait later than at its door."""

import torch.distributed._functional_collectives as funcol
from boundary_cases import backward, case, collected, leaf, reduced, weight


def late(o, w):
    """A region that does other work before it reads `o`."""
    return o + (w @ w).sum()


@case
def waited_by_the_region(compile_):
    """Inductor's backward may overwrite what a wait of an input returned, which is the caller's own tensor."""
    w = weight(64, 64)
    o = reduced(leaf(64, 64))

    def region(o, w):
        h = (funcol.wait_tensor(o.view(-1)) * w.view(-1)).sin() + (o.wait() * w).sin().view(-1)
        return (h * h).sum()

    return [*backward(compile_(region)(o, w), w), o * 1]


@case
def read_late_by_two_regions(compile_):
    x, w = leaf(), weight()
    first = compile_(lambda o, w: (w @ w).sum() + o @ w)
    second = compile_(lambda o, w: (w @ w).sum() + o.sin())
    o = collected(x)
    a, b = first(o, w), second(o, w)
    return backward([a, b, o * 1], x, w)


@case
def read_late_without_history(compile_):
    w = weight()
    return backward(compile_(lambda o, w: (w @ w).sum() + o.view(-1, 6).t() * 2)(reduced(leaf()), w), w)


@case
def read_late_without_training(compile_):
    w = weight().detach()
    return [compile_(lambda o, w: (w @ w).sum() + o.view(-1, 6).t() * 2)(reduced(leaf()), w)]
