"""The benchmark of graph breaks runs, and Inductor does break there. Nothing here is timed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_runs():
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks", "breaks", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(handle pair|two halves), .* x\) +(\d+)$", done.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["handle pair", "two halves"], done.stdout
    assert all(int(pieces) > 1 for _, pieces in rows), done.stdout
