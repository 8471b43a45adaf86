"""Random programs compiled for a group that does not communicate, to see what the verifier says about their graphs.

Each program is valid, so it has to say nothing. It looks at the graph that Dynamo captured, at the forward, backward or
inference graph after AOTAutograd, at what our passes make of each, and at the split of the joint graph. All of Inductor
runs up to there; instead of generating code, the graphs are then called as they are.
"""

import random
from collections import Counter
from contextlib import ExitStack
from unittest import mock

import torch
import torch._inductor.compile_fx
import torch.distributed as dist
from functorch.compile import make_boxed_func
from random_programs import INFERENCE, LOCAL, TRAINING, Program, inputs, run
from torch.testing._internal.distributed.fake_pg import FakeStore

from tp_compile_pass.report import record
from tp_compile_pass.verify import check, partition

OPTIONS = {"tp.strict": True, "tp.verify": "warn"}


def numbered(number):
    """The program of this number: the same on every version of everything."""
    choose = random.Random(number)
    training = choose.random() < 0.5
    kinds = LOCAL, TRAINING if training else INFERENCE
    steps = []
    for _ in range(choose.randint(2, 12)):
        steps.append((choose.choice(choose.choice(kinds)), choose.randint(0, 7), choose.randint(0, 7)))
    return Program(tuple(steps), training, choose.randint(0, 99), choose.random() < 0.3)


def look(numbers):
    """Compiles these programs, forward and where they train backward. Returns what was looked at, and each program with
    the findings about it."""
    seen: Counter = Counter()
    found = []
    with ExitStack() as stack:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        stack.callback(dist.destroy_process_group)
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.enter_context(mock.patch.object(torch._inductor.compile_fx, "compile_fx_inner", as_it_is))
        for module, name, what in COUNTED:
            stack.enter_context(mock.patch.object(module, name, counted(getattr(module, name), seen, what)))
        for number in numbers:
            program = numbered(number)
            with record.collecting() as graphs:
                call(program)
            seen["programs"] += 1
            seen["training programs"] += program.training
            seen["captured graphs"] += len(graphs)
            for graph in graphs:
                seen.update(f"{phase} graphs" for phase in graph.phases)
                seen["collectives"] += len(graph.collectives)
            findings = [finding for graph in graphs for finding in graph.findings]
            if findings:
                found.append((program, findings))
    return seen, found


#: What is counted besides graphs: where it is done, and what it is.
COUNTED = ((partition, "compare", "splits compared"), (check, "differences", "passes that changed a graph"))


def counted(function, seen, what):
    def call(*args):
        seen[what] += 1
        return function(*args)

    return call


def as_it_is(graph, inputs, *args, **kwargs):
    """Instead of Inductor's code for `graph`."""
    return make_boxed_func(graph.forward)


def call(program):
    def meaning(x, weights):
        return run(program, x, weights, dist.group.WORLD.group_name, dist.get_world_size())

    torch._dynamo.reset()
    x, weights = inputs(program, 0)
    leaves = [t.requires_grad_(program.training) for t in (x, *weights)]
    compiled = torch.compile(meaning, backend="tp_inductor", dynamic=program.dynamic or None, options=OPTIONS)
    out = compiled(leaves[0], tuple(leaves[1:])) * 1
    if program.training:
        out.sum().backward()
