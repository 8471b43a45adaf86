"""A real link on one machine: two network namespaces, joined by a pair of virtual devices with a rate limit on each.

What a rank sends goes through the kernel's network stack and queue as to another machine, and takes its time from
there; unlike with a network card, the two ranks' cores do the copying. Needs root, and `ip` and `tc` of iproute2.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.overlap.links import Link, pin

DEVICE = "link0"
#: The largest packet that leaves at once: what the kernel cuts up for TCP.
LARGEST = 65536
_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Why there can be no such link here; "" where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"there is no {' and no '.join(missing)} (package iproute2)" if missing else ""


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """Two namespaces and the pair, torn down at the end. Raises OSError with the command where the kernel refuses."""
    names = (f"tp-bench-{os.getpid()}-0", f"tp-bench-{os.getpid()}-1")
    made = []
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else nothing would be torn down
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            made.append(name)
        ends = [("name", DEVICE, "netns", name) for name in names]
        _run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for number, name in enumerate(names):
            _run("ip", "-n", name, "address", "add", f"10.213.0.{number + 1}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _run("ip", "-n", name, "link", "set", device, "up")
            _run("ip", "netns", "exec", name, *_limit(125e6))
        yield Link("gloo", partial(_enter, names), _set_speed, 0.0, (("GLOO_SOCKET_IFNAME", DEVICE),))
    finally:
        for name in made:  # the pair goes with its namespaces
            _run("ip", "netns", "delete", name)
        signal.signal(signal.SIGTERM, before)


def _enter(names: tuple[str, ...]) -> None:
    """Moves this rank into its namespace, and its threads to come."""
    pin()
    with open(f"/run/netns/{names[int(os.environ['RANK'])]}") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def _set_speed(bandwidth: float) -> None:
    _run(*_limit(bandwidth))


def _limit(bandwidth: float) -> list[str]:
    """The token bucket for `bandwidth` bytes a second: a bucket of 4 ms, the coarsest tick of common kernels."""
    bucket = max(2 * LARGEST, int(bandwidth * 0.004))
    rate = f"{int(bandwidth * 8)}bit"
    queue = ["rate", rate, "burst", str(bucket), "latency", "400ms"]
    return ["tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf", *queue]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
