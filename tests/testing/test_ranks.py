"""The rank pool: answers by rank, and failures that name the rank instead of hanging."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from tp_compile_pass.testing import RankError, RankPool


def summed(scale):
    x = torch.ones(2) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    return x * scale


def raises_on(rank):
    if dist.get_rank() == rank:
        raise ValueError("on purpose")
    dist.barrier()


def dies_on(rank):
    if dist.get_rank() == rank:
        os._exit(7)
    dist.barrier()


def aborts_on(rank):
    if dist.get_rank() == rank:
        os.abort()
    dist.barrier()


def sleeps_on(rank):
    if dist.get_rank() == rank:
        time.sleep(600)


def returns_unpicklable():
    return lambda: None


def test_each_rank_answers(ranks2):
    for answer in ranks2.run(summed, 10):
        torch.testing.assert_close(answer, torch.full((2,), 30.0))


def test_four_ranks(ranks4):
    assert [answer.tolist() for answer in ranks4.run(summed, 1)] == [[10.0, 10.0]] * 4


@pytest.mark.parametrize(
    ("check", "timeout", "message"),
    [
        (raises_on, None, r"raises_on failed:\nrank 1 raised:\n(?s:.*)ValueError: on purpose"),
        (dies_on, None, "rank 1 died with exit code 7"),
        (aborts_on, None, "rank 1 died with exit code -6, at:(?s:.*)in aborts_on"),
        (sleeps_on, 2, "rank 1 gave no answer within 2 s(?s:.*)in sleeps_on"),
    ],
)
def test_a_failing_rank_is_named_and_the_pool_goes_on(ranks2, check, timeout, message):
    with pytest.raises(RankError, match=message):
        ranks2.run(check, 1, timeout=timeout)
    assert ranks2.run(summed, 1)[0].tolist() == [3.0, 3.0]


def test_an_answer_that_cannot_travel_is_an_error(ranks2):
    with pytest.raises(RankError, match="rank 1 returned what cannot be pickled"):
        ranks2.run(returns_unpicklable)


def test_setup_runs_on_every_rank_before_the_group():
    with RankPool(2, setup=_mark) as pool:
        assert pool.run(_marked) == ["set up"] * 2


def _mark():
    assert not dist.is_initialized()
    os.environ["MARK"] = "set up"


def _marked():
    return os.environ["MARK"]
