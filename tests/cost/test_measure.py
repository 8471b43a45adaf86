"""Measuring: figures that are possible, the same on all ranks, and decided by from then on."""

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

from tp_compile_pass.cli import app
from tp_compile_pass.cost import measure, shared
from tp_compile_pass.testing import RankPool

pytestmark = pytest.mark.matrix


def measured():
    found = measure.calibrate()
    assert 1e7 < found.flops < 1e14 and 1e7 < found.memory < 1e13
    assert 0 < found.latency < 10 and 1e4 < found.bandwidth < 1e13
    shared._current = None
    costs, remark = shared.costs("cpu")
    assert not remark and "calibration" in costs.machine.source
    return costs


def figures_of_a_late_rank_0():
    shared._current.world = None  # as if the process group had been made anew
    shared.TIMEOUT = 0.2
    if dist.get_rank() == 1:
        costs, remark = shared.costs("cpu")
        assert "rank 0 published no cost figures" in remark
        assert "default" in costs.machine.source
    dist.barrier()
    return shared.costs("cpu")[0].machine.source


def test_all_ranks_decide_by_what_rank_0_measured(tmp_path):
    with RankPool(2, env={"XDG_CACHE_HOME": str(tmp_path)}) as ranks:
        mine, theirs = ranks.run(measured)
        assert mine == theirs
        ranks.run(figures_of_a_late_rank_0)
    (file,) = (tmp_path / "tp_compile_pass" / "calibration").iterdir()
    assert "gloo" in file.name


def without_peers():
    with pytest.raises(RuntimeError, match="two ranks or more"):
        measure.calibrate()


def test_one_rank_has_nothing_to_measure():
    with RankPool(1) as ranks:
        ranks.run(without_peers)


def test_the_command_says_how_it_is_started():
    result = CliRunner().invoke(app, ["calibrate"], env={"WORLD_SIZE": None})
    assert result.exit_code == 2
    assert "torchrun" in result.output
