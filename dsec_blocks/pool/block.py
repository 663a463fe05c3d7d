"""The GpuPool block: which GPUs a pool has, filled in once in the Prefect UI."""

from typing import ClassVar

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, field_validator

from dsec_blocks.model.devices import Node
from dsec_blocks.model.units import parse_memory
from dsec_blocks.pool.declared import declared_nodes
from dsec_blocks.pool.nvml import probe_node


class GpuPool(Block):
    """The GPUs of a pool on one machine: those the NVIDIA driver lists, else as many as are declared here."""

    _block_type_name = "DSec GPU Pool"
    _block_type_slug = "dsec-gpu-pool"
    _logo_url: ClassVar[HttpUrl | None] = HttpUrl(
        "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/"
        "block-logos/process.png"
    )
    _description = "The GPUs that a dsec-gang work pool shares out: found by NVML, or declared."
    _code_example = """
    ```python
    from dsec_blocks import GpuPool

    pool = GpuPool.load("BLOCK_NAME")
    for node in pool.nodes():
        print(node.name, [device.model for device in node.devices])
    ```"""

    use_nvml: bool = Field(
        default=True,
        title="Use the machine's own GPUs",
        description="Ask the NVIDIA driver first; what is declared below counts only where it lists no card.",
    )
    declared: int = Field(
        default=1, ge=0, le=64, title="Declared nodes", description="Nodes to declare on a machine without a GPU."
    )
    gpus_per_node: int = Field(
        default=8, ge=0, le=64, title="GPUs per node", description="Devices that each declared node has."
    )
    gpu_model: str = Field(
        default="H100",
        min_length=1,
        title="GPU model",
        description="Model of the declared devices, as runs ask for it.",
    )
    gpu_memory: str = Field(
        default="80GiB", title="GPU memory", description="Memory of each declared device, with its unit."
    )

    @field_validator("gpu_memory")
    @classmethod
    def _has_a_unit(cls, value: str) -> str:
        from dsec_blocks.model.errors import InvalidRequest

        try:
            parse_memory(value, field="gpu_memory")
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return value

    def nodes(self) -> tuple[Node, ...]:
        """The pool's nodes and devices, as they are now.

        Raises `ClusterError` when the driver is there and does not answer.
        """
        if self.use_nvml:
            found = probe_node()
            if found.devices:
                return (found,)
        return declared_nodes(
            nodes=self.declared,
            gpus_per_node=self.gpus_per_node,
            model=self.gpu_model,
            memory_bytes=parse_memory(self.gpu_memory, field="gpu_memory"),
        )
