import pytest
from toy_env import config

from weightclip.lab.experiments.ppo.ppo import Learners


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile the fused backend, so that runs in tests do not report compilation."""
    Learners([config()]).iterate(0)
