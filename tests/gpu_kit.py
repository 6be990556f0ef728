"""What tests of the PyTorch engine share, whatever the model: checks that a problem or a batch is handed to."""

import numpy as np
from scipy import stats

from hushrec.data.synthetic import synthetic
from hushrec.engines.gpu.engine import GpuBatch, GpuEngine
from hushrec.simulation.run import Run
from hushrec.simulation.settings import Settings
from hushrec.simulation.training import train

ALARM = 1e-6  # of each statistical test


def rounds(engine, count):
    """Runs that many rounds and returns the engine."""
    for _ in range(count):
        engine.run_round()
    return engine


def assert_same_state(found, expected):
    """Vectors and loss, to 1e-9, of a batch's only run and a reference engine."""
    np.testing.assert_allclose(found.user_vectors[0], expected.predictor().user_vectors, rtol=1e-9)
    np.testing.assert_allclose(found.item_vectors[0], expected.predictor().item_vectors, rtol=1e-9)
    np.testing.assert_allclose(found.value_rho()[0], expected.losses()["value_rho"], rtol=1e-9)


def assert_same_law(batch, engines):
    """Mean difference and spread of every coordinate agree; run b of the batch and engine b share their start.

    Paired t-tests on differences and Levene tests on spreads, Bonferroni over all of them: false alarms 1e-6.
    """
    ours = np.concatenate([batch.user_vectors, batch.item_vectors], axis=1)
    truth = np.stack(
        [np.concatenate([engine.predictor().user_vectors, engine.predictor().item_vectors]) for engine in engines]
    )
    ours, truth = (table[:, 1:].reshape(len(engines), -1) for table in (ours, truth))  # user 0 has no ratings
    means = stats.ttest_rel(ours, truth).pvalue
    spreads = stats.levene(ours, truth, center="mean").pvalue
    assert min(means.min(), spreads.min()) > ALARM / (means.size + spreads.size)


def assert_continues_bit_for_bit(problem):
    """Three rounds, a restart, two more: as five without a break."""
    whole, before, after = (GpuEngine(problem, device="cpu") for _ in range(3))
    rounds(whole, 5)
    after.restore(rounds(before, 3).state())
    rounds(after, 2)
    np.testing.assert_array_equal(after.item_vectors, whole.item_vectors)
    np.testing.assert_array_equal(after.user_vectors, whole.user_vectors)
    np.testing.assert_array_equal(after.value_rho(), whole.value_rho())
    assert after.bytes_per_client_round() == whole.bytes_per_client_round()
    assert after.round_number == 5


def assert_runs_are_independent(problems):
    """A run alone and the same run among others agree to rounding."""
    together = rounds(GpuBatch(problems, device="cpu"), 4)
    for number, problem in enumerate(problems):
        alone = rounds(GpuBatch([problem], device="cpu"), 4)
        np.testing.assert_allclose(together.item_vectors[number], alone.item_vectors[0], atol=1e-4)
        np.testing.assert_allclose(together.mean_reports()[number], alone.mean_reports()[0], rtol=1e-6)


def assert_training_takes_the_engine(**settings):
    """`train(..., engine="gpu")` ends with the vectors of `GpuEngine` on the same split, to rounding."""
    ratings = synthetic()
    found = train(ratings, engine="gpu", compare=False, **settings)
    engine = Run(ratings, Settings(engine="gpu", **settings)).engine
    assert isinstance(engine, GpuEngine)
    rounds(engine, found.record["rounds"])
    np.testing.assert_allclose(found.predictor.user_vectors, engine.predictor().user_vectors, atol=1e-4)
    np.testing.assert_allclose(found.predictor.item_vectors, engine.predictor().item_vectors, atol=1e-4)
