"""What `plan()` is compared with: small, documented re-implementations of published schedulers."""

from dsec_workers.simulation.baselines.easy import Easy
from dsec_workers.simulation.baselines.fifo import Fifo
from dsec_workers.simulation.baselines.kueue_like import KueueLike
from dsec_workers.simulation.baselines.tiresias_like import TiresiasLike

__all__ = ["Easy", "Fifo", "KueueLike", "TiresiasLike"]
