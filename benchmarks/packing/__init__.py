"""The published placement experiment of fragmentation gradient descent, in pure Python: pods, cluster, methods."""
