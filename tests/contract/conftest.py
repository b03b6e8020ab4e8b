"""The real Slurm of tests/engines, for the contract of executors."""

from tests.engines.conftest import slurm

__all__ = ["slurm"]
