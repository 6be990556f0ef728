"""A malformed message cannot exist: every check of `messages`, with its sentence."""

from dataclasses import replace

import numpy as np
import pytest
from parties import make_terms, make_vectors

from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors

ROWS = np.ones((2, 3))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_items": 0}, "n_items"),
        ({"n_factors": 0}, "n_factors"),
        ({"max_rounds": 0}, "max_rounds"),
        ({"reports_per_client": 0.0}, "reports_per_client"),
        ({"reports_per_client": 20.0}, "reports_per_client"),
        ({"step": np.inf}, "step must be positive"),
        ({"data_weight": 0.0}, "data_weight must be positive"),
        ({"decay": np.nan}, "decay"),
        ({"epoch_rounds": 0}, "epoch_rounds must be at least 1, got 0"),
        ({"n_items": 20.5}, "n_items must be a whole number, got a float"),
        ({"max_rounds": np.nan}, "max_rounds must be a whole number, got a float"),
        ({"item_regularization": np.full(3, 1e300)}, "item_regularization must"),
        ({"item_regularization": [0.1, 0.1, 0.1]}, "item_regularization must be an array"),
        ({"item_regularization": np.array([0.1, -0.1, 0.1])}, "item_regularization must"),
        ({"user_regularization": np.array([np.nan])}, "user_regularization must"),
        ({"user_regularization": np.ones((2, 2))}, "user_regularization must"),
    ],
)
def test_impossible_terms_are_refused(changes, sentence):
    """Terms that no honest server sends; from the wire, `wire.decode` raises the same sentence as the peer's error."""
    with pytest.raises((ParameterError, RemoteProtocolError)) as refusal:
        make_terms(**changes)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("round_number", "vectors", "sentence"),
    [
        (0, make_vectors(), "round_number"),
        (11, make_vectors(), "round_number"),
        (1, make_vectors(19), "20 rows, got shape (19, 3)"),
        (1, make_vectors().ravel(), "20 rows"),
        (1, np.full((20, 3), np.nan), "item_vectors must be finite"),
        (1, make_vectors().astype(complex), "item_vectors must be an array"),
        (1.5, make_vectors(), "round_number must be a whole"),
        (True, make_vectors(), "round_number must be a whole"),
    ],
)
def test_impossible_announcements_are_refused(round_number, vectors, sentence):
    """A round outside the terms, a table of the wrong shape, numbers that are none."""
    with pytest.raises(RemoteProtocolError) as refusal:
        ItemVectors(make_terms(), round_number, vectors)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("items", "gradients", "sentence"),
    [
        (np.array([1, 2, 3]), ROWS, "gradients must"),
        (np.array([[1, 2]]), ROWS, "gradients must"),
        (np.array([1, 2]), np.ones(2), "gradients must"),
        (np.array([1.0, 2.0]), ROWS, "must be an array of"),
        (np.array([1, 2]), np.ones((2, 3), dtype=int), "must be an array of"),
        (np.array([2, 1]), ROWS, "items of a report"),
        (np.array([1, 1]), ROWS, "items of a report"),
        (np.array([-1, 1]), ROWS, "items of a report"),
        (np.array([1, 2]), np.full((2, 3), np.inf), "gradients must be finite"),
    ],
)
def test_impossible_reports_are_refused_without_naming_an_item(items, gradients, sentence):
    """Shapes, types, order and numbers; the sentence never says which item."""
    with pytest.raises(RemoteProtocolError) as refusal:
        GradientReport(1, items, gradients)
    assert sentence in str(refusal.value)


def test_a_report_shows_nothing_of_its_content():
    """Its repr names the round alone."""
    report = GradientReport(3, np.array([5, 17]), np.full((2, 3), 0.123))
    assert repr(report) == "GradientReport(round_number=3)"


def test_step_sizes_follow_the_schedule():
    """η_t = (step / N) / t^0.6."""
    terms = make_terms(step=0.4, data_weight=50.0, decay=0.6)
    assert terms.step_size(1) == pytest.approx(0.008)
    assert terms.step_size(10) == pytest.approx(0.008 / 10**0.6)


def test_epochs_change_at_the_announced_rounds():
    """Every three rounds: 1–3, 4–6, 7–9."""
    assert [make_terms(epoch_rounds=3).epoch(t) for t in range(1, 8)] == [0, 0, 0, 1, 1, 1, 2]
    assert [make_terms().epoch(t) for t in (1, 10)] == [0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"reports_per_client": 6.0},
        {"data_weight": 51.0},
        {"step": 0.5},
        {"decay": 0.5},
        {"max_rounds": 11},
        {"epoch_rounds": 2},
        {"n_items": 19},
        {"item_regularization": np.zeros(3)},
        {"user_regularization": np.zeros(3)},
        {"model": "other"},
    ],
)
def test_terms_that_change_do_not_agree(changes):
    """Whatever was accepted is fixed; the catalogue may only grow."""
    assert not make_terms(**changes).agrees_with(make_terms())


def test_terms_agree_when_only_the_catalogue_grows():
    """And not when it shrinks."""
    assert replace(make_terms(), n_items=25).agrees_with(make_terms())
    assert make_terms().agrees_with(make_terms())


def test_what_was_checked_stays_as_it_was():
    """Arrays of a message are its own, and read-only; unsigned items cannot wrap around the check of their order."""
    gradients = np.ones((2, 3))
    report = GradientReport(1, np.array([1, 2]), gradients)
    gradients[0] = np.nan
    assert np.all(report.gradients == 1)
    with pytest.raises(RemoteProtocolError, match="items of a report"):
        GradientReport(1, np.array([2, 1], dtype=np.uint32), ROWS)
