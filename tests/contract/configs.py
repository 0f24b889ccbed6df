"""One or more tiny configurations of every registered architecture.

All sizes of a configuration are distinct, no two of a matrix agree, and none is a multiple of a
vector register: swapped axes, repeated heads and kernels that forget the remainder cannot pass.
A new architecture gets the whole contract by an entry here. The first configuration of each runs
in every precision, further ones in fp64 only; one with a longest text needs room for 72 tokens.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CONFIGS", "EARLIER_LOGITS_TO_ROUNDING", "OWN_LEARNING_RATES", "WINDOWS"]

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
    "gdn": {
        "short-conv": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 2,
            "n_heads": 3,
            "head_dim": 5,
            "expand_v": 1.4,
            "d_ffn": 17,
        },
        "no-conv-tied": {
            "vocab_size": 37,
            "d_model": 11,
            "n_layers": 1,
            "n_heads": 3,
            "head_dim": 7,
            "d_ffn": 17,
            "conv_size": 0,
            "tie_embeddings": True,
        },
    },
    "transformer": {
        "learned": {
            "vocab_size": 37,
            "d_model": 15,
            "n_layers": 2,
            "n_heads": 3,
            "max_seq_len": 73,
        },
        "nope": {
            "vocab_size": 37,
            "d_model": 21,
            "n_layers": 1,
            "n_heads": 3,
            "positions": "none",
        },
        "nope-window": {
            "vocab_size": 37,
            "d_model": 27,
            "n_layers": 2,
            "n_heads": 3,
            "positions": "none",
        },
    },
    "transformerpp": {
        "plain": {
            "vocab_size": 37,
            "d_model": 30,
            "n_layers": 2,
            "n_heads": 3,
            "d_ffn": 23,
        },
        "grouped-tied": {
            "vocab_size": 37,
            "d_model": 24,
            "n_layers": 1,
            "n_heads": 6,
            "n_kv_heads": 3,
            "d_ffn": 23,
            "rope_base": 100.0,
            "tie_embeddings": True,
        },
        "window": {
            "vocab_size": 37,
            "d_model": 30,
            "n_layers": 2,
            "n_heads": 5,
            "d_ffn": 23,
        },
    },
    "mamba2": {
        "one-group": {
            "vocab_size": 37,
            "d_model": 15,
            "n_layers": 2,
            "head_dim": 5,
            "state_dim": 7,
            "conv_size": 3,
        },
        "two-groups-untied": {
            "vocab_size": 37,
            "d_model": 14,
            "n_layers": 1,
            "expand": 3,
            "head_dim": 7,
            "state_dim": 11,
            "n_groups": 2,
            "tie_embeddings": False,
        },
    },
    "transformer-triple": {
        "learned": {
            "vocab_size": 37,
            "d_model": 15,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 7,
            "max_seq_len": 73,
        },
        "nope-window": {
            "vocab_size": 37,
            "d_model": 21,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 5,
            "positions": "none",
        },
    },
    "triple-latent": {
        "learned": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 5,
            "max_seq_len": 73,
        },
        "unbounded": {
            "vocab_size": 37,
            "d_model": 11,
            "n_layers": 1,
            "n_heads": 3,
            "state_dim": 7,
            "positions": "none",
        },
    },
    "triple-slot": {
        "learned": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 5,
            "n_slots": 7,
            "max_seq_len": 73,
        },
    },
    "triple-hybrid": {
        "learned": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 5,
            "max_seq_len": 73,
        },
    },
    "triple-slot-hybrid": {
        "unbounded": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 5,
            "n_slots": 7,
            "positions": "none",
        },
    },
    "gated-hybrid": {
        "default": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 5,
            "assoc_dim": 7,
            "top_k": 6,
            "max_seq_len": 73,
        },
        "concat-parallel-all": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 2,
            "n_heads": 3,
            "state_dim": 5,
            "assoc_dim": 7,
            "top_k": 6,
            "positions": "none",
            "query": "parallel",
            "layers": "all",
            "fusion": "concat",
            "write_gate": True,
            "memory_cap": 8,
        },
        "published-serial-sum-slots": {
            "vocab_size": 37,
            "d_model": 13,
            "n_layers": 1,
            "n_heads": 3,
            "state_dim": 5,
            "n_slots": 11,
            "assoc_dim": 7,
            "top_k": 2,
            "max_seq_len": 73,
            "query": "serial",
            "fusion": "sum",
            "read_gate": False,
            "init": "published",
        },
    },
}
"""Architecture → label → fields. A label appears in the test's id."""

EARLIER_LOGITS_TO_ROUNDING = {"gated-hybrid"}
"""Architectures whose earlier logits a changed token may move by rounding: the product with the
table of distinct tokens gets another shape. All others keep them bit for bit."""

OWN_LEARNING_RATES: dict[str, dict[str, float]] = {"gated-hybrid": {"log_temperature": 10.0}}
"""Architecture → last part of a parameter's name → its learning rate as a multiple of the model's.

Everything that is not declared here learns at the model's own rate.
"""

WINDOWS: dict[tuple[str, str], int] = {
    ("transformer", "nope-window"): 6,
    ("transformerpp", "window"): 6,
    ("transformer-triple", "nope-window"): 3,
}
"""(Architecture, label) → ``model.trained_length``, its window, shorter than a text."""
