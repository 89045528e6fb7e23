import pytest
from pushed_point import config

from weightclip.lab.experiments.ppo.ppo import Learners


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the fused backend, so that no run of a test reports it."""
    Learners([config()]).iterate(0)
