"""An all_reduce of which each rank reads its own part sends half as much as a reduce_scatter."""

import pytest
from small_win_programs import (
    others_rows,
    own_columns,
    own_positions,
    own_rows,
    own_rows_and_all,
    own_rows_by_slice,
)
from small_wins import count, like_eager, ranks  # noqa: F401

from tp_compile_pass.passes.own_part import NOT_ALLOWED

pytestmark = pytest.mark.matrix
ALLOWED = {"tp.own_part": True}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fn", [own_rows, own_rows_by_slice, own_positions], ids=lambda fn: fn.__name__)
def test_scattered(ranks, fn, training):  # noqa: F811
    for ops, applied, _ in ranks.run(like_eager, fn, "reduced_parts", ALLOWED, training):
        assert count(ops, "all_reduce", "reduce_scatter_tensor") == (0, 1), ops
        assert applied == [fn.__name__]


@pytest.mark.parametrize("fn", [own_columns, own_rows_and_all, others_rows], ids=lambda fn: fn.__name__)
def test_not_the_own_part_alone(ranks, fn):  # noqa: F811
    for ops, applied, skipped in ranks.run(like_eager, fn, "reduced_parts", ALLOWED):
        assert count(ops, "all_reduce", "reduce_scatter_tensor") == (1, 0), ops
        assert (applied, skipped) == ([], [])


def test_not_without_the_users_word(ranks):  # noqa: F811
    for ops, applied, skipped in ranks.run(like_eager, own_rows, "reduced_parts", {}):
        assert count(ops, "all_reduce") == (1,)
        assert (applied, skipped) == ([], [NOT_ALLOWED])
