import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(32, (8,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def gpt2(tied: bool = True) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=8, tie_word_embeddings=tied,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def make(directory: Path, steps: int, kappa: Any = 1.0, model: nn.Module | None = None, **options: Any) -> Any:
    from weightclip.integrations.transformers import ClipCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(directory), max_steps=steps, per_device_train_batch_size=4, learning_rate=0.05, report_to=[],
        use_cpu=True, save_steps=5, lr_scheduler_type="constant", disable_tqdm=True, seed=0,
    )  # fmt: skip
    callbacks = [] if kappa is None else [ClipCallback(kappa, **options)]
    return transformers.Trainer(model=model or gpt2(), args=arguments, train_dataset=Tokens(), callbacks=callbacks)


def clipper_of(trainer: Any) -> wc.Clipper:
    found = wc.find_clipper(trainer.optimizer)
    assert found is not None
    return found


def largest(model: nn.Module) -> float:
    return model.transformer.h[0].mlp.c_fc.weight.abs().max().item()


@pytest.mark.parametrize("tied", [True, False])
def test_one_callback_clips_gpt2(tied: bool, tmp_path: Path) -> None:
    trainer = make(tmp_path, 5, model=gpt2(tied))
    trainer.train()
    assert largest(trainer.model) == 0.25
    bounds = clipper_of(trainer).bounds
    assert bounds["transformer.wte.weight"].s is None
    if not tied:
        assert bounds["lm_head.weight"].s == 0.25


def test_training_twice_attaches_once(tmp_path: Path) -> None:
    trainer = make(tmp_path, 5)
    trainer.train()
    first = clipper_of(trainer)
    trainer.train()
    assert clipper_of(trainer) is first


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """With measured bounds and clipping every third step; the optimizer is loaded before the callback attaches."""
    options = {"kappa": 0.8, "bounds": "init", "every": 3}
    whole = make(tmp_path / "whole", 10, **options)
    whole.train()
    make(tmp_path / "part", 5, **options).train()
    resumed = make(tmp_path / "part", 10, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "part" / "checkpoint-5"))
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    measured = {name: bound.s for name, bound in clipper_of(whole).bounds.items()}
    assert {name: bound.s for name, bound in clipper_of(resumed).bounds.items()} == measured


def test_resuming_without_the_callback_warns(tmp_path: Path) -> None:
    make(tmp_path, 5).train()
    with pytest.warns(RuntimeWarning, match="clip_weights no longer acts"):
        make(tmp_path, 10, kappa=None).train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        make(tmp_path, 10).train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))


@pytest.mark.parametrize(("saved", "resumed"), [(1.0, {"*": 3.0}), ({"*": 3.0}, 1.0), ({"*": 3.0}, {"*": 5.0})])
def test_a_resumed_run_keeps_its_kappa_and_one_warning_names_both(saved: Any, resumed: Any, tmp_path: Path) -> None:
    trainer = make(tmp_path, 5, kappa=saved)
    trainer.train()
    other = make(tmp_path, 10, kappa=resumed)
    with pytest.warns(UserWarning, match="the param_groups have kappa=.*, which replaces kappa=") as caught:
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert len([one for one in caught if "which replaces kappa" in str(one.message)]) == 1
    assert repr(clipper_of(other)) == repr(clipper_of(trainer))
