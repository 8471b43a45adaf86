"""What our passes cost while compiling: their share of Inductor's time on a Llama, and how they grow with the graph.

The Llama trains on a group of eight ranks that does not communicate; nothing is loaded from a cache. The growth is that
of our steps alone: over chains of tensor-parallel MLPs, as AOTAutograd hands them out, and for the schedule over the
problem of two such chains beside each other.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch.distributed.device_mesh import init_device_mesh
from torch.fx import Graph, GraphModule

import tp_compile_pass  # noqa: F401
from benchmarks.llama import batch, llama
from benchmarks.sampler import INTERVAL, PARTS, sampling
from tp_compile_pass.backend import CAPTURE_PASSES, GRAPH_PASSES
from tp_compile_pass.options import TPOptions
from tp_compile_pass.passes.base import PassContext
from tp_compile_pass.passes.pipeline import run_passes
from tp_compile_pass.report.collect import collective_records
from tp_compile_pass.report.record import GraphReport
from tp_compile_pass.schedule import order
from tp_compile_pass.schedule.problem import Buffer, Problem, Task
from tp_compile_pass.verify.check import PassCheck, check_graph
from tp_compile_pass.verify.partition import acts, compare, with_values

THEIRS = ("Dynamo", "Inductor", "C++ compiler")


def main(json_file: Path | None, plot: Path | None, quick: bool, layers: int, training: bool) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    console = Console(width=max(Console().width, 120))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    console.print(f"torch {torch.__version__}")
    compiled = share(1 if quick else layers, training)
    console.print(
        f"{compiled['what']}: {compiled['seconds']:.0f} s; our passes take {compiled['share']:.2%} of Inductor's time, "
        f"{compiled['share without C++']:.2%} without its C++ compiler's"
    )
    for part, fraction in compiled["parts"].items():
        console.print(f"  all of the {part:29}{fraction:8.2%}")
    for place, fraction in compiled["ours"].items():
        console.print(f"  {place:40}{fraction:8.2%} of Inductor's")
    sizes = (1000, 2000) if quick else (1000, 3000, 10_000, 30_000, 100_000)
    growth = {size: passes_alone(size) for size in sizes}
    console.print("our steps alone, microseconds a node, by nodes")
    for step in growth[sizes[0]]:
        cells = "".join(f"{growth[size][step] / size * 1e6:10.1f}" for size in sizes)
        console.print(f"  {step:40}{cells}")
    console.print(f"  {'nodes':40}" + "".join(f"{size:10}" for size in sizes))
    dist.destroy_process_group()
    if json_file is not None:
        results = {"torch": torch.__version__, "compile": compiled, "seconds by nodes": growth}
        json_file.write_text(json.dumps(results, indent=1) + "\n")
    if plot is not None:
        _plot(growth, plot)


def share(layers: int, training: bool) -> dict[str, Any]:
    """Compiles a Llama of so many layers, forward and where `training` backward, and says whose time it was."""
    model = llama(layers, init_device_mesh("cpu", (dist.get_world_size(),)))
    run = torch.compile(model, backend="tp_inductor", fullgraph=True)
    x = batch()
    with torch._inductor.config.patch(force_disable_caches=True), sampling() as counts:
        begin = time.perf_counter()
        if training:
            run(x.requires_grad_()).sum().backward()
        else:
            with torch.no_grad():
                run(x)
        seconds = time.perf_counter() - begin
    ours = {place: count for place, count in counts.most_common() if place not in THEIRS}
    inductor, compiler = counts["Inductor"], counts["C++ compiler"]
    return {
        "what": f"{'training' if training else 'inference'} graph of a Llama of {layers} layers",
        "seconds": seconds,
        "samples": counts.total(),
        "sampled every": INTERVAL,
        "share": sum(ours.values()) / max(inductor + compiler, 1),
        "share without C++": sum(ours.values()) / max(inductor, 1),
        "parts": {
            part: sum(count for place, count in ours.items() if place.startswith(f"{part}: "))
            / max(inductor + compiler, 1)
            for part in PARTS.values()
        },
        "ours": {place: count / max(inductor + compiler, 1) for place, count in ours.items()},
        "theirs": {place: counts[place] for place in THEIRS},
    }


def of_part(ours: dict[str, int], part: str) -> int:
    return sum(count for place, count in ours.items() if place.startswith(f"{part}: "))


def passes_alone(nodes: int) -> dict[str, float]:
    """Seconds of each step over a graph of about so many nodes, or a problem of so many tasks."""
    gm, options, problem = mlps(nodes), TPOptions(), two_chains(nodes)
    report = GraphReport("", "inductor", {})

    def run(passes: Any, phase: str) -> None:
        run_passes(passes, gm, PassContext(options, phase), report)

    steps = {
        "passes over the captured graph": lambda: run(CAPTURE_PASSES, "captured"),
        "passes after AOTAutograd": lambda: run(GRAPH_PASSES, "inference"),
        "the report's collectives": lambda: collective_records(gm, "inference"),
        "the verifier: a graph": lambda: check_graph(gm, "inference", options, report),
        "the verifier: around a pass": lambda: PassCheck(gm).after_pass({}),
        "the verifier: a split": lambda: compare(with_values(gm, acts(gm)), acts(gm), []),
        "the schedule": lambda: order.plan(problem, options.memory_slack),
    }
    taken = {}
    for name, step in steps.items():
        begin = time.perf_counter()
        step()
        taken[name] = time.perf_counter() - begin
    return {**taken, "all": sum(taken.values())}


def two_chains(tasks: int) -> Problem:
    """Two halves of a batch through MLPs, each layer of which ends in an all_reduce that the other half can hide. The
    given order is that of the program: half after half in each layer, every wait at once."""
    made: list[Task] = []
    buffers: list[Buffer] = []
    needs: list[tuple[int, ...]] = [(), ()]
    for _ in range(tasks // 10):
        for half in range(2):
            for _ in range(3):
                made.append(Task("kernel", after=needs[half], seconds=1e-3))
                needs[half] = (len(made) - 1,)
                buffers.append(Buffer(1024, len(made) - 1, (len(made),)))
            made.append(Task("all_reduce", "start", needs[half], queue="tp", transfer=2e-3))
            made.append(Task("wait", "wait", (len(made) - 1,), waits_for=(len(made) - 1,)))
            needs[half] = (len(made) - 1,)
    return Problem(made, [replace(buffer, users=(min(buffer.users[0], len(made) - 1),)) for buffer in buffers])


def mlps(nodes: int) -> GraphModule:
    """A chain of tensor-parallel MLPs after AOTAutograd."""
    from torch._subclasses import FakeTensorMode

    aten, c10d = torch.ops.aten, torch.ops._c10d_functional
    graph = Graph()
    with FakeTensorMode():
        value = torch.empty(16, 16)

    def made(node):
        node.meta["val"] = value
        return node

    x, up, down = (made(graph.placeholder(name)) for name in ("x", "up", "down"))
    group = dist.group.WORLD.group_name
    for _ in range(nodes // 6):
        hidden = made(graph.call_function(aten.mm.default, (x, up)))
        hidden = made(graph.call_function(aten.relu.default, (hidden,)))
        partial = made(graph.call_function(aten.mm.default, (hidden, down)))
        total = made(graph.call_function(c10d.all_reduce.default, (partial, "sum", group)))
        total = made(graph.call_function(c10d.wait_tensor.default, (total,)))
        x = made(graph.call_function(aten.add.Tensor, (x, total)))
    graph.output((x,))
    return GraphModule(torch.nn.Module(), graph)


def _plot(growth: dict[int, dict[str, float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    sizes = list(growth)
    for step in growth[sizes[0]]:
        axes.loglog(sizes, [growth[size][step] for size in sizes], marker="o", label=step)
    first = growth[sizes[0]]["all"]
    axes.loglog(sizes, [first * size / sizes[0] for size in sizes], "k--", linewidth=1, label="linear")
    axes.set_xlabel("nodes")
    axes.set_ylabel("seconds")
    axes.set_title(f"our passes alone, torch {torch.__version__}")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file)
