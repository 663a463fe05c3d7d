"""Flows that train: `train` runs anything on a gang, `finetune` goes on from the last run of the same model."""

from dsec_flows.training.finetune import finetune
from dsec_flows.training.train import train

__all__ = ["finetune", "train"]
