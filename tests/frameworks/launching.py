"""How the tests start ranks: torchrun, as users do, on CPUs."""

import os

RANKS = 2
#: Arguments for Python.
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",  # a graph that is loaded is not seen, and not reported
    "HF_HUB_OFFLINE": "1",
}
