"""What do the graph breaks cost that `Work` handles make under plain Inductor?

The programs of `benchmarks.overlap` that use handles, tiny and on a group whose collectives do nothing, so that what is
left is the host's work. Long kernels hide it, on a GPU; short ones take as long as it does.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.overlap.programs import PROGRAMS, Case, Size

NAMES = ("handle pair", "two halves")
WAYS = ("eager", "inductor", "tp_inductor")
CALLS, SIZE = 20, Size(tokens=32, width=32, hidden=64, layers=8)


def main(quick: bool) -> None:
    from torch.testing._internal.distributed import fake_pg

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    print(f"torch {torch.__version__}: microseconds per call, and how many times longer than tp_inductor's")
    print(f"{'':26}" + "".join(f"{way:>21}" for way in WAYS) + f"{'Inductor: pieces':>18}")
    for name in NAMES:
        case = PROGRAMS[name].build(dist.group.WORLD, SIZE)
        torch._dynamo.utils.counters.clear()
        calls = {way: _call(case, way) for way in WAYS}
        pieces = torch._dynamo.utils.counters["frames"]["ok"] - 1  # one is ours
        rounds = [[_microseconds(call) for call in calls.values()] for _ in range(2 if quick else 51)]
        ours = WAYS.index("tp_inductor")
        row = ""
        for number in range(len(WAYS)):
            median = statistics.median(times[number] for times in rounds)
            row += f"{median:12.0f} ({statistics.median(times[number] / times[ours] for times in rounds):.2f} x)"
        what = f"{name}, {'with backward' if case.trains else 'forward'}"
        print(f"{what:26}{row}{pieces:18}")
    dist.destroy_process_group()


def _call(case: Case, way: str) -> Callable[[], object]:
    function: Any = case.function  # with code of its own: Dynamo looks through all that was compiled of one code
    function = FunctionType(
        function.__code__.replace(), function.__globals__, way, function.__defaults__, function.__closure__
    )
    compiled = function if way == "eager" else torch.compile(function, backend=way, fullgraph=way == "tp_inductor")

    def call() -> object:
        out = compiled(*case.args)
        if case.trains:
            out.backward(out.detach())
        return out

    call()
    return call


def _microseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6
