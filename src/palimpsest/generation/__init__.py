"""Continuing texts: sampling, batches of rows, and sessions that can be put away."""

from palimpsest.generation.generate import Generated, TokenStream, generate, stream
from palimpsest.generation.sampling import GREEDY, SamplingConfig, sample
from palimpsest.generation.session import Session

__all__ = [
    "GREEDY",
    "Generated",
    "SamplingConfig",
    "Session",
    "TokenStream",
    "generate",
    "sample",
    "stream",
]
