"""What the verifier costs, as a share of Inductor's compile time, and how it grows with the model.

    python benchmarks/verify_cost.py 4 8 16      # layers

A tensor-parallel transformer stack (attention and gated MLP, an all_reduce behind each) is compiled for inference on a
group of eight ranks that does not communicate. Prints, per number of layers: nodes, seconds of Inductor, share.
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

import tp_compile_pass  # noqa: F401
from tp_compile_pass import backend
from tp_compile_pass.verify.check import check_graph

WIDTH, HEADS, TOKENS = 64, 4, 16


def layer(x, weights):
    qkv, out, gate, up, down = weights
    q, k, v = (F.rms_norm(x, (WIDTH,)) @ qkv).view(TOKENS, 3, HEADS, -1).permute(1, 2, 0, 3)
    attention = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    x = x + funcol.all_reduce(attention.transpose(0, 1).reshape(TOKENS, -1) @ out, "sum", dist.group.WORLD)
    y = F.rms_norm(x, (WIDTH,))
    return x + funcol.all_reduce((F.silu(y @ gate) * (y @ up)) @ down, "sum", dist.group.WORLD)


def measure(layers):
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)]
    weights = [[torch.randn(shape) for shape in shapes] for _ in range(layers)]
    spent, nodes = [0.0], [0]

    def timed(gm, *args):
        begin = time.perf_counter()
        check_graph(gm, *args)
        spent[0] += time.perf_counter() - begin
        nodes[0] = len(gm.graph.nodes)

    def model(x):
        for w in weights:
            x = layer(x, w)
        return x

    backend.check_graph = timed
    torch._dynamo.reset()
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        begin = time.perf_counter()
        torch.compile(model, backend="tp_inductor", fullgraph=True)(torch.randn(TOKENS, WIDTH))
        whole = time.perf_counter() - begin
    print(
        f"{layers} layers: {nodes[0]} nodes, compiled in {whole:.1f} s, verified in {spent[0] * 1e3:.1f} ms, "
        f"{100 * spent[0] / whole:.2f} %, {spent[0] / nodes[0] * 1e6:.1f} us a node"
    )


if __name__ == "__main__":
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    for number in map(int, sys.argv[1:] or ("4", "8", "16")):
        measure(number)
