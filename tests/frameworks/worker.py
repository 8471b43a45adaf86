"""One rank of a framework's example: `torchrun … worker.py EXAMPLE FUNCTION BACKEND FOLDER`.

Leaves in FOLDER what the example's function returned (`values-RANK.pt`) and what we reported (`reports-RANK.json`).
"""

import importlib
import json
import os
import sys
from pathlib import Path

import torch

from tp_compile_pass.report.record import reports


def main() -> None:
    example, function, backend, folder = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
    values = getattr(importlib.import_module(example), function)(backend)
    rank = os.environ.get("RANK", "0")
    torch.save(values, Path(folder, f"values-{rank}.pt"))
    graphs = [graph for report in reports() for graph in report.to_dict()["graphs"]]
    Path(folder, f"reports-{rank}.json").write_text(json.dumps(graphs))


if __name__ == "__main__":
    main()
