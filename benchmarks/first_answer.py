"""A service's first answer from weights that were just loaded, with numpy alone: what "ready" means here."""

from collections.abc import Mapping

import numpy as np

HEADS = 12
HELLO_WORLD = (101, 7592, 2088, 102)
"""What MiniLM's tokenizer makes of "hello world"."""


def first_answer(weights: Mapping[str, np.ndarray]) -> float:
    """MiniLM's embedding of "hello world", or for any other model one product with each of its matrices."""
    if "embeddings.word_embeddings.weight" in weights:
        return float(np.linalg.norm(embedding(weights, HELLO_WORLD)))
    total = 0.0
    for matrix in weights.values():
        total += float((matrix @ np.ones(matrix.shape[-1], dtype=matrix.dtype)).sum())
    return total


def embedding(weights: Mapping[str, np.ndarray], tokens: tuple[int, ...]) -> np.ndarray:
    """The mean over the last layer of a BERT encoder, of length 1: shape (384,) for MiniLM."""
    x = weights["embeddings.word_embeddings.weight"][list(tokens)]
    x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = _normed(weights, "embeddings.LayerNorm", x)
    for layer in range(6):
        name = f"encoder.layer.{layer}"
        query, key, value = (
            _dense(weights, f"{name}.attention.self.{part}", x).reshape(len(tokens), HEADS, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ value
        mixed = mixed.swapaxes(0, 1).reshape(len(tokens), -1)
        x = _normed(
            weights, f"{name}.attention.output.LayerNorm", x + _dense(weights, f"{name}.attention.output.dense", mixed)
        )
        inner = _dense(weights, f"{name}.intermediate.dense", x)
        inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = _normed(weights, f"{name}.output.LayerNorm", x + _dense(weights, f"{name}.output.dense", inner))
    mean = x.mean(0)
    return np.asarray(mean / np.linalg.norm(mean))


def _dense(weights: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])


def _normed(weights: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return np.asarray(centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"])
