"""The examples run with their libraries, and their weights stay in the box."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import weightclip as wc

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _isolated(tmp_path, monkeypatch):
    """Use one thread, and a temporary directory for files written by libraries."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


def count_at_bound(model: nn.Module, kappa: float) -> int:
    """Return the number of entries at their bound kappa/sqrt(fan_in), and check that none exceeds it."""
    count = 0
    for layer in linear_layers(model):
        bound = kappa / math.sqrt(layer.in_features)
        for tensor in layer.parameters():
            sizes = tensor.detach().double().abs()
            assert sizes.max() <= bound
            count += int((sizes >= bound * (1 - torch.finfo(tensor.dtype).eps)).sum())
    return count


@torch.no_grad()
def leave_the_box(model: nn.Module) -> None:
    """Move the weights out of the box, so that only a clipped step can bring them back."""
    for layer in linear_layers(model):
        for tensor in layer.parameters():
            tensor.mul_(100)


def test_plain_loop():
    model = load_example("plain_loop").main(kappa=2.0, tasks=2, steps=30)
    assert count_at_bound(model, 2.0) > 0


def test_plain_loop_without_clipping_leaves_the_box():
    model = load_example("plain_loop").main(kappa=math.inf, tasks=2, steps=30)
    with pytest.raises(AssertionError):
        count_at_bound(model, 2.0)


@pytest.mark.host
def test_sb3_ppo_keeps_clipping_after_load_in_another_process(tmp_path):
    agent = load_example("sb3_ppo").main(kappa=3.0, steps=512)
    assert count_at_bound(agent.policy, 3.0) > 0
    assert [name for name, bound in agent.policy.optimizer.clipper.bounds.items() if bound.s is None] == ["parameter 0"]
    assert next(iter(agent.policy.parameters())) is agent.policy.log_std

    leave_the_box(agent.policy)
    agent.save(tmp_path / "saved.zip")
    resume = """
import gymnasium, torch
from stable_baselines3 import PPO

torch.set_num_threads(1)
agent = PPO.load("saved.zip", env=gymnasium.make("Pendulum-v1"), device="cpu")
agent.learn(512)
agent.save("resumed.zip")
"""
    subprocess.run([sys.executable, "-c", resume], check=True, timeout=120)
    assert count_at_bound(type(agent).load(tmp_path / "resumed.zip", device="cpu").policy, 3.0) > 0


@pytest.mark.host
@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # v4: the paper has it
def test_sb3_ppo_on_ant_compares_kl_and_weight_norm(capsys):
    runs = load_example("sb3_ppo_ant").main(steps=6144)
    assert "approximate KL" in capsys.readouterr().out
    assert all(len(rows) == 3 and all(kl > 0 for _, kl, _ in rows) for rows in runs.values())
    assert runs[3.0][-1][2] < runs[None][-1][2]


@pytest.mark.host
def test_sb3_dqn(tmp_path):
    from weightclip.integrations.sb3 import ClipCallback

    agent = load_example("sb3_dqn").main(kappa=1.0, steps=300)
    assert count_at_bound(agent.q_net, 1.0) > 0

    leave_the_box(agent.q_net)
    agent.save(tmp_path / "saved.zip")
    loaded = type(agent).load(tmp_path / "saved.zip", env=agent.get_env(), device="cpu")
    agent.set_parameters(tmp_path / "saved.zip")
    for resumed in (loaded, agent):
        with pytest.warns(UserWarning, match="keeps .*kappa=1.*kappa=9.0 of the callback is ignored"):
            resumed.learn(300, callback=ClipCallback(9.0))
        assert count_at_bound(resumed.q_net, 1.0) > 0


def test_loss_of_plasticity(tmp_path):
    script = EXAMPLES / "loss_of_plasticity.py"
    done = subprocess.run(
        [sys.executable, script, "--tasks", "1", "--out", tmp_path / "demo"], capture_output=True, text=True, check=True
    )
    assert "adam+wc: accuracy" in done.stdout
    assert "weightclip run input-permuted-mnist --method adam+wc" in done.stdout
    assert (tmp_path / "demo" / "loss_of_plasticity.png").read_bytes().startswith(b"\x89PNG")
    assert "| 1 | 0." in (tmp_path / "demo" / "loss_of_plasticity.md").read_text()


@pytest.mark.host
def test_accelerate_loop():
    assert count_at_bound(load_example("accelerate_loop").main(kappa=2.0, epochs=5), 2.0) > 0


@pytest.mark.host
def test_cleanrl_ppo(capsys):
    agent = load_example("cleanrl_ppo").main(kappa=3.0, total_timesteps=512, num_steps=256)
    assert count_at_bound(agent, 3.0) > 0
    assert "mean episodic return" in capsys.readouterr().out


@pytest.mark.host
def test_transformers_trainer():
    trainer = load_example("transformers_trainer").main(kappa=1.0, steps=20)
    layer = trainer.model.transformer.h[0].mlp.c_fc
    assert layer.weight.abs().max() <= 1 / math.sqrt(32)
    assert wc.find_clipper(trainer.optimizer).bounds["transformer.wte.weight"].s is None


@pytest.mark.host
def test_tianshou_dqn():
    example = load_example("tianshou_dqn")
    algorithm = example.main(kappa=1.0, steps=100)
    assert count_at_bound(algorithm.policy, 1.0) > 0

    resumed = example.main(kappa=5.0, steps=10)
    resumed.load_state_dict(algorithm.state_dict())
    assert resumed.optim.state_dict()["param_groups"][0]["kappa"] == 1.0


@pytest.mark.host
@pytest.mark.filterwarnings(
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated",
    "ignore:.* does not have many workers",
    "ignore:GPU available but not used",
)
def test_lightning_module_resumes_with_the_kappa_of_its_checkpoint(tmp_path):
    import lightning

    example = load_example("lightning_module")
    trainer = example.main(kappa=2.0, epochs=5)
    assert count_at_bound(trainer.lightning_module, 2.0) > 0

    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    model = example.Classifier(kappa=100.0)
    resumed = lightning.Trainer(
        max_epochs=10,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    resumed.fit(model, trainer.train_dataloader, ckpt_path=tmp_path / "saved.ckpt")
    assert [group["kappa"] for group in resumed.optimizers[0].param_groups] == [2.0]
    assert resumed.global_step > trainer.global_step
    assert count_at_bound(model, 2.0) > 0
