"""Adapters that start and stop gangs: local processes here, Kubernetes and Ray later. One protocol for all."""
