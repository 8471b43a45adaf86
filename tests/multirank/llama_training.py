"""How the Llama tests train a model, and compare compiled with eager."""

import pytest
import torch
import torch.nn.functional as F

from training import losses_of

STEPS = 20
VOCABULARY, SEQUENCE = 64, 8


def train(model, layers, logits, how, inner):
    """The losses of STEPS steps; `logits(tokens)` runs the model. `how` is "eager", "layers" (each compiled by itself)
    or "model"."""
    options = {"tp.inner": inner, "tp.strict": True}
    torch._dynamo.reset()
    for compiled in {"eager": [], "layers": layers, "model": [model]}[how]:
        compiled.compile(backend="tp_inductor", options=options)
    tokens = torch.randint(VOCABULARY, (2, SEQUENCE + 1), generator=torch.Generator().manual_seed(7))

    def loss():
        return F.cross_entropy(logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return [value.item() for value in losses_of(model.parameters(), loss, STEPS, lr=0.3)]


def assert_same(ranks, model, how, inner="aot_eager"):
    expected = ranks.run(model, "eager", "", timeout=600)
    assert expected[0][-1] < 0.5 * expected[0][0]  # it learns
    for wanted, found in zip(expected, ranks.run(model, how, inner, timeout=600), strict=True):
        assert found == pytest.approx(wanted, rel=1e-3)
