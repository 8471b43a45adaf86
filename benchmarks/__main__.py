"""`python -m benchmarks NAME`."""

import importlib
import sys

BENCHMARKS = ("boundary",)

if len(sys.argv) != 2 or sys.argv[1] not in BENCHMARKS:
    sys.exit(f"usage: python -m benchmarks {{{','.join(BENCHMARKS)}}}")
importlib.import_module(f"benchmarks.{sys.argv[1]}").main()
