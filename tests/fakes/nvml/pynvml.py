"""A stand-in for nvidia-ml-py on a machine with four cards, as far as the probe asks.

Put this directory on PYTHONPATH. FAKE_NVML says how it behaves: "well", "hangs", "lost" (card 2 fell off the bus), or
"denied" (the driver refuses).
"""

import os
import time
from types import SimpleNamespace

NVML_NVLINK_MAX_LINKS = 2
NVML_FEATURE_ENABLED = 1
_NAMES = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"]
_SWITCH = b"00000000:85:00.0"


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_DriverNotLoaded(NVMLError):
    pass


class NVMLError_NoPermission(NVMLError):
    pass


def nvmlInit() -> None:
    behaviour = os.environ["FAKE_NVML"]
    if behaviour == "hangs":
        time.sleep(600)
    if behaviour == "absent":
        raise NVMLError_LibraryNotFound("no library")
    if behaviour == "denied":
        raise NVMLError("Driver/library version mismatch")


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return 4


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if os.environ["FAKE_NVML"] == "lost" and index == 2:
        raise NVMLError("GPU is lost")
    return index


def nvmlDeviceGetPciInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0".encode())


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-fake-{handle}"


def nvmlDeviceGetName(handle: int) -> str:
    return _NAMES[handle]


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(total=(80 if handle < 3 else 24) * 2**30)


def nvmlDeviceGetNvLinkState(handle: int, link: int) -> int:
    if handle == 3:
        raise NVMLError("Not Supported")
    return 1 if handle < 2 else 0


def nvmlDeviceGetNvLinkRemotePciInfo(handle: int, link: int) -> SimpleNamespace:
    return SimpleNamespace(busId=_SWITCH)
