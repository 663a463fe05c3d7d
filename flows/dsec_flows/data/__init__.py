"""Flows about data: `prefetch` brings a model or data set to nodes before anybody needs it there."""

from dsec_flows.data.prefetch import prefetch

__all__ = ["prefetch"]
