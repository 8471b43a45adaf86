"""Measures what the cost model asks for: this machine's matrix products and memory, this process group's connection."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from datetime import datetime, timezone

import torch
import torch.distributed as dist

from tp_compile_pass import compat
from tp_compile_pass.cost.calibration import Calibration, Key, store

#: How often each thing is done; the median counts.
TIMES = 7
#: Bytes of the collectives that give the bandwidth, and of the one that gives the latency.
SMALL, LARGE, TINY = 1 << 20, 1 << 23, 64


def key(device: str) -> Key:
    """What figures measured in this process now are valid for."""
    return Key(
        host=platform.node(),
        device=device,
        model=torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        torch=torch.__version__,
        threads=torch.get_num_threads() if device == "cpu" else 1,
        world=dist.get_world_size(),
        backend=compat.group_backend(compat.group_name(dist.group.WORLD), device),
    )


def calibrate(device: str = "cpu") -> Calibration:
    """Measures on all ranks at once, and keeps the result for later runs on this host. Takes some seconds.

    Every rank of the default process group has to call it. Each figure is the worst of all ranks', so that all ranks
    return the same. Programs that compile afterwards, in new processes, decide by it. Raises RuntimeError without a
    process group of at least two ranks.
    """
    if compat.world_group() is None or dist.get_world_size() < 2:
        raise RuntimeError("calibrate() measures the default process group, which needs two ranks or more")
    rate, copy, launch = _machine(device)
    steps = 2 * (dist.get_world_size() - 1)
    tiny, small, large = (_reduce_seconds(device, size) for size in (TINY, SMALL, LARGE))
    share = steps / dist.get_world_size()  # bytes on the wire per byte reduced
    bandwidth = share * (LARGE - SMALL) / max(large - small, 1e-9)
    worst = torch.tensor([1 / rate, 1 / copy, launch, tiny / steps, 1 / bandwidth], dtype=torch.float64, device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    slow_rate, slow_copy, launch, latency, slow_link = worst.tolist()
    found = Calibration(
        key=key(device),
        measured=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        flops=1 / slow_rate,
        memory=1 / slow_copy,
        launch=launch,
        latency=latency,
        bandwidth=1 / slow_link,
    )
    if dist.get_rank() == 0:
        store(found)
    dist.barrier()
    return found


def _machine(device: str) -> tuple[float, float, float]:
    """Operations and bytes per second, and seconds of a small kernel."""
    size, dtype = (4096, torch.bfloat16) if device == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    product = _seconds(device, lambda: torch.mm(a, b, out=out))
    source = torch.ones(1 << (28 if device == "cuda" else 23), device=device)  # beyond the caches
    target = torch.empty_like(source)
    copied = _seconds(device, lambda: target.copy_(source))
    few = torch.ones(8, device=device)
    launch = _seconds(device, lambda: torch.add(few, 1, out=few))
    return 2 * size**3 / product, 2 * source.nbytes / copied, launch


def _reduce_seconds(device: str, size: int) -> float:
    tensor = torch.zeros(size // 4, device=device)

    def reduce() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()

    dist.barrier()
    return _seconds(device, reduce)


def _seconds(device: str, action: Callable[[], object]) -> float:
    """The median time of `action`, after one that does not count."""
    times = []
    for _ in range(TIMES + 1):
        _synchronize(device)
        begin = time.perf_counter()
        action()
        _synchronize(device)
        times.append(time.perf_counter() - begin)
    return max(statistics.median(times[1:]), 1e-9)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
