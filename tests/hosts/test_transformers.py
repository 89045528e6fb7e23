"""Hugging Face models and the Trainer, with randomly initialized models and no downloads."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weightclip as wc

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def gpt2(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=8, **options)
    return transformers.GPT2LMHeadModel(config)


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(32, (8,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


def test_every_layer_of_gpt2_has_its_bound() -> None:
    model = gpt2(tie_word_embeddings=False)
    bounds = wc.resolve_bounds(model)
    name = "transformer.h.0.mlp.c_proj"  # from 64 inputs to 16 outputs
    assert model.get_parameter(f"{name}.weight").shape == (64, 16)
    assert bounds[f"{name}.weight"].s == bounds[f"{name}.bias"].s == 1 / 8
    left = {bound.reason.split(":")[0] for bound in bounds.values() if bound.s is None}
    assert left == {"embedding", "normalization layer"}
    assert wc.resolve_bounds(model, "paper")[f"{name}.weight"].s == 1 / 8


def test_the_advice_for_tied_embeddings_works() -> None:
    model = gpt2()
    with pytest.raises(ValueError, match=r"tied weights.*exclude='transformer\.wte\.weight' skips it"):
        wc.resolve_bounds(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    wc.clip_weights(optimizer, model, kappa=1.0, exclude="transformer.wte.weight")
    ids = torch.randint(32, (2, 8))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    assert model.transformer.h[0].attn.c_attn.weight.abs().max() == 0.25


def test_decision_transformers_are_supported() -> None:
    config = transformers.DecisionTransformerConfig(state_dim=4, act_dim=2, hidden_size=16, n_layer=1, n_head=1)
    model = transformers.DecisionTransformerModel(config)
    bounds = wc.resolve_bounds(model)
    assert not [name for name, bound in bounds.items() if bound.reason.startswith("no bound rule")]


@pytest.mark.parametrize("optim", ["adamw_torch", "schedule_free_adamw"])
def test_the_saved_model_of_a_trainer_is_in_the_box(optim: str, tmp_path: Path) -> None:
    if optim.startswith("schedule"):
        pytest.importorskip("schedulefree")
    model = gpt2(tie_word_embeddings=False)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=20, per_device_train_batch_size=4, learning_rate=0.3, optim=optim,
        report_to=[], use_cpu=True, save_strategy="steps", save_steps=10, lr_scheduler_type="constant",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Tokens())
    trainer.create_optimizer()
    wc.clip_weights(trainer.optimizer, model, kappa=1.0)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    for directory in ("checkpoint-10", "checkpoint-20", "final"):
        saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / directory)
        bounds = wc.resolve_bounds(saved)
        largest = {n: p.abs().max().item() for n, p in saved.named_parameters() if bounds[n].s is not None}
        assert all(size <= (bounds[n].s or math.inf) for n, size in largest.items())
        assert any(size == bounds[n].s for n, size in largest.items())  # the bound is reached, so clipping is active
