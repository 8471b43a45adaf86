"""A training loop for tests that compare how a model learns in eager and compiled."""

from collections.abc import Callable, Iterable

import torch


def losses_of(parameters: Iterable[torch.Tensor], loss: Callable[[], torch.Tensor], steps: int, lr: float):
    """The losses of `steps` steps of plain gradient descent; `loss()` runs the model forward."""
    optimizer = torch.optim.SGD(parameters, lr=lr)
    losses = []
    for _ in range(steps):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return losses
