"""What runs on each rank: compile a program in each way, check it, set the link, and time all ways in turn."""

import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map

from benchmarks.overlap import links
from benchmarks.overlap.links import Link
from benchmarks.overlap.programs import FULL, PROGRAMS, TINY, Case, Program

_REORDER = {"reorder_for_compute_comm_overlap": True, "reorder_for_compute_comm_overlap_passes": None}
_KEEPING_MEMORY = [
    "reorder_communication_preserving_peak_memory",
    "sink_waits_iterative",
    "reorder_communication_preserving_peak_memory",
]
#: Ways to run a program: backend and options. The two reorderings are what Inductor offers and runs without a GPU.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "eager": ("", {}),
    "inductor": ("inductor", {}),
    "inductor, keeping memory": (
        "inductor",
        {**_REORDER, "reorder_for_compute_comm_overlap_passes": _KEEPING_MEMORY},
    ),
    "inductor, sink and raise": (
        "inductor",
        {**_REORDER, "reorder_for_compute_comm_overlap_passes": ["sink_waits", "raise_comms", "sink_waits"]},
    ),
    "tp_inductor": ("tp_inductor", {}),
}
ALONE = {"eager": "eager, no communication", "inductor": "inductor, no communication"}


def measure(name: str, quick: bool, rounds: int, link: Link) -> dict[str, Any]:
    """Times program `name`: seconds by way and round, peak bytes by way, of this rank, and what the link was set to."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.cache_size_limit = 64  # each way is one more compilation of the same code
    size, program = TINY if quick else FULL, PROGRAMS[name]
    case, alone = program.build(dist.group.WORLD, size), program.build(links.no_link(), size)
    ways = {label: _compiled(alone, program, *WAYS[way]) for way, label in ALONE.items()}
    compute = [min(_call(built)[0] for _ in range(10)) for built in ways.values()][-1]  # what else runs only adds
    bandwidth = _set_speed(link, case, program.beside * compute)
    expected, failed = None, {}
    for way, (backend, options) in WAYS.items():
        built = _compiled(case, program, backend, options)
        try:
            result = _call(built)[1]
        except Exception as error:  # all ranks compile the same, and fail alike
            failed[way] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        expected = result if expected is None else expected
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3, msg=lambda text, way=way: f"{way}: {text}")
        ways[way] = built
    for label in ALONE.values():
        if torch.allclose(_call(ways[label])[1], expected, rtol=1e-3, atol=1e-3):
            raise AssertionError(f"{label}: the result is as if there had been communication")
    times: dict[str, list[float]] = {way: [] for way in [*ways, "communication alone"]}
    for _ in range(rounds):  # in turn, so that a slow moment of the machine slows all alike
        for way, built in ways.items():
            times[way].append(_call(built)[0])
        times["communication alone"].append(_communicate(case.sent))
    peaks = {way: _peak_bytes(built) for way, built in ways.items()}
    return {"times": times, "peaks": peaks, "failed": failed, "bandwidth": bandwidth}


def _set_speed(link: Link, case: Case, seconds: float) -> float:
    """Sets the link so that the case's communication takes so long; bytes per second, the same on all ranks. Before
    anything that communicates is compiled, so that whoever wants to know the link's speed then measures this one."""
    sent = links.sent_bytes(case.sent, dist.get_world_size())
    bandwidth = torch.tensor(sent / max(seconds - link.latency * len(case.sent), 1e-4))
    dist.broadcast(bandwidth, 0)
    link.set_speed(bandwidth.item())
    return bandwidth.item()


def _compiled(case: Case, program: Program, backend: str, options: dict[str, Any]) -> Case:
    if not backend:
        return case
    whole = program.whole or backend == "tp_inductor"
    function = torch.compile(case.function, backend=backend, options=dict(options), fullgraph=whole)
    return Case(function, case.args, case.sent, case.trains)


def _call(case: Case) -> tuple[float, Any]:
    """Seconds of one call, or of its backward, and the result or the input's gradient."""
    if case.trains:
        (x,) = case.args
        x.grad = None
        out = _settled(case.function(x))
        gradient = torch.ones_like(out)
        dist.barrier()
        start = time.perf_counter()
        out.backward(gradient)
        result = _settled(x.grad)
        return time.perf_counter() - start, result.clone()
    dist.barrier()
    start = time.perf_counter()
    result = _settled(case.function(*case.args))
    return time.perf_counter() - start, result


def _peak_bytes(case: Case) -> int:
    """The most memory of tensors that one call takes on top of what is there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _call(case)
    taken = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            taken += event.nbytes()
            peak = max(peak, taken)
    return peak


def _settled(value: Any) -> Any:
    """Eager hands out async tensors: the time until they are there counts, too."""
    return tree_map(lambda x: x.wait() if isinstance(x, AsyncCollectiveTensor) else x, value)


def _communicate(elements: list[int]) -> float:
    buffers = [torch.zeros(count) for count in elements]
    dist.barrier()
    start = time.perf_counter()
    works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
    for work in works:
        work.wait()
    return time.perf_counter() - start
