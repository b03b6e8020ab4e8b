"""Trains a tiny network with PyTorch Lightning, which writes checkpoints as epoch=E-step=S.ckpt.

Saves a checkpoint and ends with exit code 0 on SIGUSR1.
"""

from __future__ import annotations

import argparse
import signal
import time
from types import FrameType

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar


class Rows(torch.utils.data.Dataset):
    """Random rows, each loaded in `sample_ms` milliseconds."""

    def __init__(self, count: int, sample_ms: float) -> None:
        self._rows = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
        self._sample_s = sample_ms / 1000

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._sample_s)
        return self._rows[index]


class Autoencoder(pl.LightningModule):
    """Learns to reproduce its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.ReLU(), torch.nn.Linear(3, 8))

    def _register_sharded_tensor_state_dict_hooks_if_available(self) -> None:
        """Registers nothing: torch 1.13 cannot import its sharded tensors under Python 3.11."""

    def _loss(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layers(rows), rows)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        """Returns the loss of one batch."""
        return self._loss(batch)

    def validation_step(self, batch: torch.Tensor, _index: int) -> None:
        """Logs the validation loss of one batch."""
        self.log("val_loss", self._loss(batch), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class StopOnSigusr1(pl.Callback):
    """Ends the training after the current step once SIGUSR1 has arrived, and saves a checkpoint."""

    def __init__(self) -> None:
        self._received = False
        signal.signal(signal.SIGUSR1, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        """Saves and stops if the signal has arrived."""
        if self._received and not trainer.should_stop:
            name = f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt"
            trainer.save_checkpoint(f"{trainer.checkpoint_callback.dirpath}/{name}")
            trainer.should_stop = True


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_epochs", type=int, default=3)
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--save_steps", type=int, default=50)
    parser.add_argument("--resume_from_checkpoint")
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--sample_ms", type=float, default=0.0)
    parser.add_argument("--rich", action="store_true")
    options = parser.parse_args()
    pl.seed_everything(3)
    checkpoints = ModelCheckpoint(options.output_dir, every_n_train_steps=options.save_steps, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=options.max_epochs,
        max_steps=options.max_steps,
        min_epochs=0,
        accelerator="cpu",
        logger=False,
        log_every_n_steps=10,
        callbacks=[checkpoints, StopOnSigusr1(), RichProgressBar() if options.rich else TQDMProgressBar()],
    )
    load = torch.utils.data.DataLoader
    train = load(Rows(options.samples, options.sample_ms), batch_size=8)
    validate = load(Rows(options.samples // 10, options.sample_ms), batch_size=8)
    trainer.fit(Autoencoder(), train, validate, ckpt_path=options.resume_from_checkpoint)


if __name__ == "__main__":
    main()
