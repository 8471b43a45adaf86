"""The cost formulas, against values worked out by hand."""

import pytest
import sympy
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tp_compile_pass.cost import defaults, fx
from tp_compile_pass.cost.model import Link, Machine, kernel_seconds, steps, transfer_seconds
from tp_compile_pass.ir import collectives

LINK = Link(latency=1.0, bandwidth=10.0, source="a test")
c10d = torch.ops._c10d_functional


def test_ring_steps():
    assert [steps(kind, 4) for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")] == [6, 3, 3, 1]


def test_a_transfer_costs_its_steps_and_its_bytes():
    assert transfer_seconds("all_reduce", 2, 100, LINK) == 2 + 10
    size = sympy.Symbol("s0")
    assert float(transfer_seconds("all_gather", 4, size, LINK).subs(size, 50)) == 3 + 5


def test_a_kernel_costs_what_its_slower_half_does():
    machine = Machine(flops=100.0, memory=10.0, launch=0.5, source="a test")
    assert kernel_seconds(1000, 10, machine) == 10.5
    assert kernel_seconds(0, 10, machine) == 1.5


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu"])
def test_every_device_and_backend_has_defaults(device):
    assert defaults.machine(device, threads=4).flops > 0
    for backend in ("gloo", "nccl", "mine", ""):
        assert defaults.link(device, backend).bandwidth > 0
    assert defaults.machine("cpu", 4).flops == 4 * defaults.machine("cpu", 1).flops


def products(x, y):
    return torch.mm(x, y), torch.addmm(y[0], x, y), torch.relu(x)


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_operations_of_graph_nodes(mode):
    gm = make_fx(products, tracing_mode=mode)(torch.ones(2, 3), torch.ones(3, 4))
    counts = {str(node.target): fx.flops(node) for node in gm.graph.nodes if node.op == "call_function"}
    product = counts["aten.mm.default"]
    assert product == 2 * 2 * 3 * 4 if mode == "fake" else product.free_symbols  # a function of the sizes
    assert counts["aten.addmm.default"] == product
    assert counts["aten.relu.default"] == 0


def sized(x):
    return c10d.wait_tensor(c10d.all_gather_into_tensor(x, 4, "0"))


@pytest.mark.matrix
def test_a_transfer_of_a_graph_node_is_symbolic():
    gm = make_fx(sized, tracing_mode="symbolic")(torch.ones(8, 2))
    (node,) = (node for node in gm.graph.nodes if collectives.collective_op(node))
    seconds = fx.transfer(node, LINK)
    (rows, columns) = sorted(seconds.free_symbols, key=str)
    assert float(seconds.subs({rows: 8, columns: 2})) == pytest.approx(3 + 3 * 64 / 10)


def test_random_numbers_are_known():
    def draws(x):
        return torch.bernoulli(x) + x

    nodes = [node for node in make_fx(draws)(torch.ones(2)).graph.nodes if node.op == "call_function"]
    assert [fx.draws_random_numbers(node) for node in nodes] == [True, False]
