"""What every test may ask for."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import hypothesis.configuration
import numpy as np
import pytest

if TYPE_CHECKING:
    from postgresql_kit import Cluster

# Property tests have no deadline (machines differ) and leave no folder behind in the tree.
hypothesis.configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "hushrec-hypothesis")
hypothesis.settings.register_profile("hushrec", deadline=None, database=None)
hypothesis.settings.load_profile("hushrec")


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed: a statistical test that passes once passes always."""
    return np.random.default_rng(20_180_601)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets: $HUSHREC_DATA, or ../shared/data beside the project."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ["HUSHREC_DATA"]) if "HUSHREC_DATA" in os.environ else beside
    if not folder.is_dir():
        pytest.skip("the real data sets are not here: set HUSHREC_DATA to the folder that holds ml-100k")
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator["Cluster"]:
    """One PostgreSQL server for all tests of a module; they are skipped where it is not installed."""
    from postgresql_kit import running_cluster

    with running_cluster() as found:
        yield found


@pytest.fixture
def database(cluster: "Cluster") -> str:
    """The address of an empty database."""
    return cluster.new_database()
