"""What every test may ask for."""

import gc
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

# The files that take longest, in this order, begin first, so that no worker waits for another's last file.
LONGEST = (
    "test_shards",
    "test_audit",
    "test_device_browser",
    "test_masked_dropouts",
    "test_ray",  # after others have compiled the kernels, which its workers would compile side by side
    "test_service_workers",
    "test_gpu_pairs",
    "test_masked_kills",
    "test_service_faults",
    "test_masked_service",
    "test_service_postgresql",
    "test_engine_cpu",
    "test_data_readers",
    "test_audit_leaks",
    "test_demo",
    "test_readme",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest files to the front, after pytest-randomly has shuffled all files."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of later garbage collections, which every server of a test ends with."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one new authority instead of the system's: every HTTP client reads all of them, which takes 50 ms."""
    from hushrec.service.certificates import self_signed

    authority, *_ = self_signed(tmp_path_factory.mktemp("authority"), ["127.0.0.1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authority))
        patch.setenv("SSL_CERT_DIR", str(authority.parent))
        yield


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
