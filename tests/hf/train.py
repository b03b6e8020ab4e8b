"""Trains a tiny, randomly initialised GPT-2 with the Hugging Face Trainer, as users write such a script.

The options are those of `transformers.TrainingArguments`, plus the ones of `Options`. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

_VOCABULARY = 64


@dataclass
class Options:
    """Options of this script, in addition to those of the Trainer."""

    save_on_sigterm: bool = field(default=False, metadata={"help": "save a checkpoint on SIGTERM, exit 0"})
    report_progress: bool = field(default=False, metadata={"help": "write the steps to the scheduler's file"})
    sample_ms: float = field(default=0.0, metadata={"help": "milliseconds that loading one sample takes"})
    samples: int = field(default=800, metadata={"help": "size of the training set"})
    eval_samples: int = field(default=0, metadata={"help": "size of the evaluation set"})


class Sequences(torch.utils.data.Dataset):
    """Random sequences, each loaded in `sample_ms` milliseconds, as if read and prepared."""

    def __init__(self, count: int, sample_ms: float) -> None:
        generator = torch.Generator().manual_seed(1)
        self._rows = torch.randint(0, _VOCABULARY, (count, 16), generator=generator)
        self._sample_s = sample_ms / 1000

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self._sample_s)
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


class SaveOnSigterm(TrainerCallback):
    """Saves a checkpoint after the current step and ends the training once SIGTERM has arrived."""

    def __init__(self) -> None:
        self._received = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> TrainerControl:
        if self._received:
            control.should_save = True
            control.should_training_stop = True
        return control


class ReportProgress(TrainerCallback):
    """Writes the step, the number of steps and the newest checkpoint to the file that the scheduler reads."""

    def __init__(self) -> None:
        self._path = Path(os.environ["GPU_SCHEDULER_PROGRESS"])
        self._checkpoint: str | None = None

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        """Notes the checkpoint just saved."""
        self._checkpoint = f"{args.output_dir}/checkpoint-{state.global_step}"

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: object, **__: object) -> None:
        """Replaces the line."""
        line = {"step": state.global_step, "total": state.max_steps, "checkpoint": self._checkpoint}
        self._path.write_text(json.dumps(line) + "\n")


def main() -> None:
    """Parses the command line, trains, and saves the final model."""
    training, options = HfArgumentParser((TrainingArguments, Options)).parse_args_into_dataclasses()
    set_seed(training.seed)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=_VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    )
    evaluation = Sequences(options.eval_samples, options.sample_ms) if options.eval_samples else None
    callbacks: list[TrainerCallback] = []
    if options.save_on_sigterm:
        callbacks.append(SaveOnSigterm())
    if options.report_progress:
        callbacks.append(ReportProgress())
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=Sequences(options.samples, options.sample_ms),
        eval_dataset=evaluation,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    main()
