"""Figures for machines that nobody has measured. They need only be right to a small factor: they decide how much
compute is put behind a collective, and `CAUTION` errs on the side of too much. `tp-compile-pass calibrate` measures.
"""

from __future__ import annotations

from tp_compile_pass.cost.model import Costs, Link, Machine

#: How far off these figures may be.
CAUTION = 8.0

_MACHINES = {
    # A core with two 256-bit FMA units at 3 GHz peaks at 96 GFLOP/s in float32, a channel of DDR4-2666 at 21 GB/s
    # (their data sheets); half of either is what programs get. A kernel costs a call from Python into C++: assumed.
    "cpu": Machine(flops=48e9, memory=10e9, launch=5e-6, source="default for one CPU core"),
    # NVIDIA A100 data sheet: 312 TFLOP/s in bfloat16, 2.0 TB/s; of which 60 % and 80 % are reached (assumed), and
    # 4 microseconds to launch a kernel (assumed).
    "cuda": Machine(flops=187e12, memory=1.6e12, launch=4e-6, source="default for an A100"),
}

_LINKS = {
    # TCP over 10 Gbit/s Ethernet at line rate; 100 microseconds for a step through the kernel and gloo's threads
    # (assumed).
    "gloo": Link(latency=100e-6, bandwidth=1.25e9, source="default for 10 Gbit/s Ethernet"),
    # NVIDIA A100 data sheet: 600 GB/s of NVLink, both directions together; 75 % of one direction is reached, and a
    # step takes 3 microseconds (both assumed).
    "nccl": Link(latency=3e-6, bandwidth=225e9, source="default for NVLink of an A100"),
}


def machine(device: str, threads: int) -> Machine:
    """A machine with `device` ("cpu", "cuda", …), where CPU kernels use `threads` threads."""
    if device != "cpu":
        return _MACHINES["cuda"]
    core = _MACHINES["cpu"]
    return Machine(core.flops * threads, core.memory * min(threads, 8), core.launch, core.source)


def link(device: str, backend: str) -> Link:
    """The connection of a process group with this backend. One that is not known gets the figures of the usual
    backend for `device`."""
    return _LINKS.get(backend) or _LINKS["gloo" if device == "cpu" else "nccl"]


def costs(device: str, threads: int) -> Costs:
    """Defaults for everything."""
    return Costs(machine(device, threads), {}, CAUTION)
