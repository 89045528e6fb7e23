"""Weight clipping in Hugging Face's Trainer: one callback.

GPT-2 ties its output layer to its embedding; the callback skips that matrix. Nothing is downloaded: a small
GPT-2 learns random tokens.

    python examples/transformers_trainer.py
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from weightclip.integrations.transformers import ClipCallback


class RandomTokens(torch.utils.data.Dataset):
    """64 sequences of 16 tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main(kappa: float = 2.0, steps: int = 50) -> Trainer:
    """Train for a few steps."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=16))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    clip = ClipCallback(kappa)
    trainer = Trainer(model=model, args=arguments, train_dataset=RandomTokens(), callbacks=[clip])
    trainer.train()
    print(clip.clipper)
    return trainer


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
