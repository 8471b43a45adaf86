"""The generated code: a collective starts where the user started it, ends where the user waited, and copies nothing
that eager does not copy."""

import re

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass.testing import RankPool, deferred

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def ranks():
    with RankPool(2, "deferred", setup=deferred.register, timeout=400) as pool:
        yield pool


def captured(fn, *inputs):
    """The calls of the graph that AOTAutograd makes, in order, by their short names."""
    seen = []

    def observe(gm):
        for node in gm.graph.nodes:
            if node.op == "call_function" and "getitem" not in str(node.target):
                seen.append(node.target._schema.name.rpartition("::")[2])

    undo = also(observe)
    try:
        torch.compile(fn, backend="tp_inductor", fullgraph=True, options={"tp.inner": "aot_eager"})(*inputs)
    finally:
        undo()
    return seen


def also(observe):
    """Lets `observe` see what `tp_inductor` sees after AOTAutograd; returns what undoes it."""
    from tp_compile_pass import backend

    before = backend._observe

    def both(gm, phase, **kwargs):
        observe(gm)
        before(gm, phase, **kwargs)

    backend._observe = both
    return lambda: setattr(backend, "_observe", before)


def overlapped(x, w):
    t = x @ w
    work = dist.all_reduce(t, async_op=True)
    y = x.sin()
    work.wait()
    return t + y


def two_in_order(x, w):
    a, b = x @ w, x.cos()
    first = dist.all_reduce(a, async_op=True)
    second = dist.all_reduce(b, async_op=True)
    y = x.sin()
    second.wait()
    z = y.exp()
    first.wait()
    return a + b + z


def into_a_buffer(x, w):
    out = x.new_empty(8, 4)
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    y = x @ w
    work.wait()
    return out.sum() + y


def graphs():
    x, w = torch.ones(4, 4), torch.ones(4, 4)
    return {fn.__name__: captured(fn, x, w) for fn in (overlapped, two_in_order, into_a_buffer)}


GOLDEN = {
    "overlapped": "mm all_reduce sin wait_tensor add",
    "two_in_order": "mm cos all_reduce all_reduce sin wait_tensor exp wait_tensor add add",
    "into_a_buffer": "all_gather_into_tensor mm wait_tensor sum add",
}


def test_starts_and_waits_where_the_user_did(ranks):
    for seen in ranks.run(graphs):
        for name, expected in GOLDEN.items():
            calls = [call for call in seen[name] if not re.match(r"empty|new_empty|view|copy|clone|permute", call)]
            assert " ".join(calls) == expected, name


def copies():
    """How often the generated code allocates, and copies, for one all_reduce of an intermediate."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    compiled = torch.compile(overlapped, backend="tp_inductor", fullgraph=True)
    with torch._inductor.config.patch(force_disable_caches=True):
        _, code = run_and_get_code(compiled, torch.ones(4, 4), torch.ones(4, 4))
    body = "\n".join(code)
    body = body[body.index("def call") :]
    return len(re.findall(r"_c10d_functional\.all_reduce_\.", body)), len(re.findall(r"\.copy_\(|clone\(", body)), body


def test_an_intermediate_is_reduced_in_place(ranks):
    for in_place, copied, body in ranks.run(copies):
        assert (in_place, copied) == (1, 0), body
