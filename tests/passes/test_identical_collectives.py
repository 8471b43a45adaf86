"""The same collective on the same tensor runs once, where one result will do."""

import pytest
from small_win_programs import (
    both_returned,
    changed_in_between,
    gathered_twice_crossed,
    reduced_differently,
    reduced_twice,
    used_up_before,
)
from small_wins import count, like_eager, ranks  # noqa: F401

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fn", [reduced_twice, gathered_twice_crossed], ids=lambda fn: fn.__name__)
def test_once(ranks, fn, training, dynamic):  # noqa: F811
    for ops, applied, _ in ranks.run(like_eager, fn, "identical_collectives", {}, training, dynamic):
        assert count(ops, "all_") == (1,), ops
        if not training:  # torch's common-subexpression elimination is for training graphs
            assert applied == [fn.__name__]


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (reduced_differently, None),
        (changed_in_between, None),
        (both_returned, "the caller gets both results, and may change one"),
        (used_up_before, "the earlier result is used up before, and would have to be kept until here"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_left_alone(ranks, fn, reason):  # noqa: F811
    for ops, applied, skipped in ranks.run(like_eager, fn, "identical_collectives", {}):
        assert count(ops, "all_reduce") == (2,), ops
        assert (applied, skipped) == ([], [reason] if reason else [])
