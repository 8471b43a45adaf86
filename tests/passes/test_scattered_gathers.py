"""What was just cut into the ranks' own parts is not gathered again."""

import pytest
from small_win_programs import scattered_and_gathered, scattered_from_own
from small_wins import count, like_eager, ranks  # noqa: F401

from tp_compile_pass.passes.own_part import NOT_ALLOWED

pytestmark = pytest.mark.matrix
ALLOWED = {"tp.own_part": True}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_not_sent(ranks, training):  # noqa: F811
    for ops, applied, _ in ranks.run(like_eager, scattered_and_gathered, "scattered_gathers", ALLOWED, training):
        assert count(ops, "all_reduce", "all_gather", "reduce_scatter") == (1, 0, 0), ops
        assert applied == ["scattered_and_gathered"]


def test_ranks_that_cut_different_tensors(ranks):  # noqa: F811
    for ops, applied, skipped in ranks.run(like_eager, scattered_from_own, "scattered_gathers", ALLOWED):
        assert count(ops, "all_gather") == (1,), ops
        assert (applied, skipped) == ([], [])


def test_not_without_the_users_word(ranks):  # noqa: F811
    for ops, applied, skipped in ranks.run(like_eager, scattered_and_gathered, "scattered_gathers", {}):
        assert count(ops, "all_reduce", "all_gather") == (1, 1)
        assert (applied, skipped) == ([], [NOT_ALLOWED])
