"""One or more tiny configurations of every registered architecture.

All sizes of a configuration are distinct, no two of a matrix agree, and none is a multiple of a
vector register: swapped axes, repeated heads and kernels that forget the remainder cannot pass.
A new architecture gets the whole contract by an entry here. The first configuration of each runs
in every precision, further ones in fp64 only; one with a longest text needs room for 72 tokens.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CONFIGS"]

CONFIGS: dict[str, dict[str, dict[str, Any]]] = {
    "gpn": {
        "1l": {"vocab_size": 37, "d_state": 13, "d_emb": 6, "d_ffn": 17},
    },
    "gpnm": {
        "1l": {
            "vocab_size": 37,
            "d_state": 19,
            "d_emb": 6,
            "d_ffn": 23,
            "n_heads": 3,
            "d_key": 5,
            "d_val": 7,
        },
        "2l-bias": {
            "vocab_size": 37,
            "d_state": 13,
            "d_emb": 11,
            "d_ffn": 17,
            "n_layers": 2,
            "decoder_bias": True,
            "n_heads": 3,
            "d_key": 5,
            "d_val": 7,
        },
    },
}
"""Architecture → label → fields. A label appears in the test's id."""
