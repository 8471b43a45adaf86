"""One file per question; `python -m benchmarks NAME` prints its answer as ratios to plain Inductor in the same run."""
