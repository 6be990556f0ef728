"""Splits: the rows of each part, and what is cold."""

from dataclasses import replace

import numpy as np
import pytest

from hushrec.data import (
    Ratings,
    Scale,
    Split,
    cold_counts,
    k_core,
    k_fold,
    leave_last_out,
    leave_one_out,
    load,
    random_split,
    synthetic,
    time_split,
    validation_split,
)
from hushrec.errors import ParameterError


def three_users() -> Ratings:
    """User 0 rated three items, user 1 two, user 2 one."""
    users, items = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 2, 0, 1, 3])
    return Ratings("three", ["a", "b", "c"], list("wxyz"), users, items, np.full(6, 3.0), Scale(1, 5))


def test_the_random_split_is_the_generators_permutation_cut_at_four_fifths():
    """Anybody can make the same split with one line of NumPy."""
    split = random_split(1_000_209, 7)

    order = np.random.default_rng(7).permutation(1_000_209)
    assert np.array_equal(split.train, order[:800_167])
    assert np.array_equal(split.test, order[800_167:])


def test_validation_rows_come_out_of_training_and_never_out_of_test():
    """Train and validation together are the old training part; test rows are in neither."""
    split = random_split(1000, 0)
    inner = validation_split(split, 0)

    assert sorted([*inner.train, *inner.test]) == sorted(split.train)
    assert (len(inner.train), len(inner.test)) == (640, 160)


def test_leave_one_out_holds_out_one_rating_of_everybody_who_has_two():
    """User 2 has one rating: it stays in training."""
    ratings = three_users()
    split = leave_one_out(ratings, 0)

    assert sorted(ratings.users[split.test]) == [0, 1]
    assert sorted([*split.train, *split.test]) == list(range(6))


def test_leave_one_out_picks_each_rating_of_a_user_equally_often():
    """User 0 has three ratings: over 3,000 seeds each is held out 1,000 ± 140 times (false alarm 2e-7)."""
    ratings = three_users()
    held_out = [leave_one_out(ratings, seed).test[0] for seed in range(3000)]

    assert np.abs(np.bincount(held_out) - 1000).max() <= 140


def test_cold_users_and_items_are_counted_once_each():
    """Training on user 0's rows leaves users 1 and 2 cold, and of the items only the last."""
    assert cold_counts(three_users(), Split(np.array([0, 1, 2]), np.array([3, 4, 5]))) == (2, 1)
    assert cold_counts(three_users(), Split(np.array([0, 3, 5]), np.array([1, 2, 4]))) == (0, 2)


def test_a_split_shows_counts_only():
    """A repr never lists rows."""
    assert repr(random_split(10, 0)) == "Split(8 train, 2 test)"


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_outside_zero_and_one_is_refused(share):
    """Neither part may be everything."""
    with pytest.raises(ParameterError, match="test_share"):
        random_split(10, 0, share)
    with pytest.raises(ParameterError, match=r"^share"):
        validation_split(random_split(10, 0), 0, share)


def test_a_split_with_an_empty_part_is_refused():
    """One rating cannot be cut in two."""
    with pytest.raises(ParameterError, match=r"test_share.*--final.*final=True"):
        random_split(1, 0)


def test_a_negative_seed_is_refused():
    """The generator has no negative seeds."""
    for cut in (lambda: random_split(10, -1), lambda: leave_one_out(synthetic(5, 5, 10), -1)):
        with pytest.raises(ParameterError, match="seed"):
            cut()


def timed() -> Ratings:
    """Three users; the times run against the order of the rows."""
    return replace(three_users(), times=np.array([6.0, 5, 4, 3, 2, 1]))


def test_folds_hold_every_row_out_once():
    """Five folds of 23 rows: disjoint, complete, and nearly of one size."""
    folds = k_fold(23, 5, 0)
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(23))
    assert all(sorted([*fold.train, *fold.test]) == list(range(23)) for fold in folds)
    assert {len(fold.test) for fold in folds} == {4, 5}
    for k in (1, 24):
        with pytest.raises(ParameterError, match=r"^k must be"):
            k_fold(23, k, 0)


def test_what_came_last_is_held_out():
    """A third of six rows: the two latest, which are the first two of the file; of each user the latest."""
    assert sorted(time_split(timed(), 1 / 3).test) == [0, 1]
    assert sorted(leave_last_out(timed()).test) == [0, 3]
    assert sorted(leave_last_out(timed()).train) == [1, 2, 4, 5]
    for cut in (time_split, leave_last_out):
        with pytest.raises(ParameterError, match="time"):
            cut(three_users())


def test_a_core_is_what_is_left_when_the_rare_go():
    """Items y and z have one rating; then user c has none left: users a and b with items w and x."""
    core = k_core(replace(timed(), titles=list("WXYZ")), per_user=2, per_item=2)
    assert (core.user_ids, core.item_ids, core.titles) == (["a", "b"], ["w", "x"], ["W", "X"])
    assert (core.users.tolist(), core.items.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert core.times is not None
    assert core.times.tolist() == [6, 5, 3, 2]
    with pytest.raises(ParameterError, match="per_user"):
        k_core(three_users(), per_user=4, per_item=1)
    assert k_core(synthetic(20, 15, 120), per_user=4, per_item=4).catalogue is None  # it depends on the ratings


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("1,7,3,881250949\n2,7,4,881250950\n", [881250949, 881250950]),
        ("user,item,rating,timestamp\n1,7,3,5\n2,7,4,6.5\n", [5, 6.5]),
        ("date,user,item,rating\n1970-01-02,1,7,3\n1970-01-01,2,7,4\n", [86400, 0]),
        ("user,item,rating,comment\n1,7,3,12\n2,7,4,13\n", None),
        ("user,item,rating,time\n1,7,3,soon\n2,7,4,13\n", None),
    ],
    ids=["fourth column", "named", "dates", "another column", "unreadable"],
)
def test_times_are_read_where_there_are_any(tmp_path, text, times):
    """By the header's name, or as the fourth column below no header; what cannot be read as a time is ignored."""
    (tmp_path / "ratings.csv").write_text(text)
    found = load(tmp_path / "ratings.csv", scale="1,5").times
    assert (None if found is None else found.tolist()) == times


def test_times_go_with_their_rows_when_duplicates_are_settled(tmp_path):
    """The last of a pair keeps its own time."""
    (tmp_path / "ratings.csv").write_text("user,item,rating,time\n1,7,3,5\n1,7,4,6\n2,7,1,7\n")
    found = load(tmp_path / "ratings.csv", duplicates="last", scale="1,5")
    assert found.times is not None
    assert found.times.tolist() == [6, 7]
