"""What can be made to go wrong on one node, and how long things take there."""

from collections import deque
from dataclasses import dataclass, field

import anyio

from tests.fakes.kubelet.admission import Refusal


@dataclass(slots=True)
class Faults:
    """Switches, all off."""

    refusals: deque[Refusal] = field(default_factory=deque)
    """The next pods are refused with these."""
    start_delay_seconds: float = 0.0
    annotation_delay_seconds: float = 0.0
    are_images_held: bool = False
    are_images_slow: bool = False
    """Images that are held are on their way, and nothing is wrong."""
    images: anyio.Event = field(default_factory=anyio.Event)
    """Set when images that were held can be pulled."""
    heard: anyio.Event = field(default_factory=anyio.Event)
    """Set while the node's words reach the API server."""
    is_well: bool = True
    """Whether it reports itself Ready."""
    is_up: bool = True
    """Whether the machine runs."""

    def __post_init__(self) -> None:
        self.heard.set()

    def hold_images(self, *, quietly: bool) -> None:
        """No image can be pulled from now on: refused, or `quietly` on its way all the time."""
        self.are_images_held, self.are_images_slow, self.images = True, quietly, anyio.Event()

    def release_images(self) -> None:
        """Images can be pulled again."""
        self.are_images_held = False
        self.images.set()
