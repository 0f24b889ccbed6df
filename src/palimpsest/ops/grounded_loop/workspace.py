"""The buffers of one window, and the protocol of the elementwise engines that work on them.

Legend: T steps, B batch, D d_state, F d_ffn, H heads, K d_key, U d_val, P = H·K, Q = H·U, L layers,
S steps of a block, N columns of a first product, Z = F + Q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from palimpsest.ops.grounded_loop.chunks import ChunkGrads, ChunkRows
from palimpsest.ops.grounded_loop.folding import Folded, Layout

__all__ = ["HOLD", "RESET", "BackwardBuffers", "Engine", "Step", "Window", "row_flags"]

HOLD, RESET = 1, 2


@dataclass
class Window:
    """Everything that the steps of one window read and write, time first.

    ``cd`` is the dtype of the products (bf16, fp32 or fp64); the rest is in the state's dtype, at
    least fp32. Saved for the backward, per token and row: ``unit`` D, ``y`` N of each layer and,
    for L > 1, ``mid`` D of each layer but the last, in ``cd``; a scalar; and the memory at each
    block's start, H·K·U per 2048/B tokens, in the state's dtype. With the drive coming in and the
    predictions going out (which the caller has anyway) that is all.
    """

    layout: Layout
    folded: Folded  # biases and decays in the state's dtype
    flags: Tensor  # (T,B) uint8: HOLD, RESET
    drive: Tensor  # (T,B,D)
    predicted: Tensor  # (T+1,B,D), the state carried in first
    grounded: Tensor  # (B,D) running s
    unit: Tensor  # (T,B,D) cd: s / rms(s)
    unit_scale: Tensor  # (T,B): 1 / rms(s)
    y: list[Tensor]  # L × (T,B,N) cd: columns of each first product; v is replaced by v − Mᵀk
    mid: list[Tensor]  # L−1 × (T,B,D) cd: c / rms(c) between layers
    mid_scale: list[Tensor]  # L−1 × (T,B)
    key_input: Tensor  # (B,P) the next write's key before bias and relu
    memory: Tensor | None  # (B,H,K,U) M at the current chunk's start
    rows: ChunkRows  # of the current chunk
    ground_in: Tensor  # (B,D) cd: predicted / rms(predicted), input of the ground product
    z: Tensor  # (B,Z) cd: input of the second product


@dataclass
class BackwardBuffers:
    """What the backward adds: running gradients, and the rows of a block."""

    dc: Tensor  # (B,D) gradient of the prediction, then of the layer's input
    ds_carry: Tensor  # (B,D) gradient of s that a held row passes on
    dkey: Tensor  # (B,P) cd: gradient of the key input of the step at hand, due one step earlier
    dkey_bias: Tensor  # (P)
    dA_log: Tensor  # (H)
    ddrive: Tensor  # (T,B,D)
    dpredicted: Tensor  # (T,B,D) gradient of the outputs
    lam: Tensor  # (B,H,K,U) Λ at the chunk's end
    key_input: Tensor  # (B,P) key input of the window's first step
    # of a block, recomputed: its memory's rows, and M at each chunk's start and at the end
    rows: ChunkRows
    memories: Tensor  # (chunks + 1,B,H,K,U)
    outputs: Tensor  # (L,B,H,S,U) o
    key_scale: Tensor  # (B,H,S) 1 / norm of the key
    query_scale: Tensor  # (L,B,H,S)
    ground_in: Tensor  # (S,B,D) cd
    ground_scale: Tensor  # (S,B)
    ground_y: Tensor  # (S,B,D) cd
    # of a block, made: what the weights' products need
    grads: ChunkGrads
    dy: list[Tensor]  # L × (S,B,N) cd
    z: list[Tensor]  # L × (S,B,Z) cd
    dout: list[Tensor]  # L × (S,B,D) cd
    dground: Tensor  # (S,B,D) cd


@dataclass(frozen=True)
class Step:
    """A step of the backward: t in the window, s in the block, [lo, hi) its chunk in the block."""

    t: int
    s: int
    lo: int
    hi: int
    chunk: int


class Engine(Protocol):
    """The elementwise work and the memory; t is a step of the window, j its place in the chunk."""

    def ground(self, t: int, y_BD: Tensor) -> None:
        """s, unit and unit_scale from the ground product."""

    def mix(self, layer: int, t: int, j: int) -> None:
        """z from the layer's first product; the first layer writes the memory."""

    def predict(self, layer: int, t: int, out_BD: Tensor) -> None:
        """The layer's output: into mid, or into predicted and ground_in for the last."""

    def flush(self, n: int) -> None:
        """The n rows of the chunk into the memory."""

    def recompute(self, block: list[tuple[int, int]]) -> None:
        """A block's memory rows, memories and outputs again; memories[0] is given."""

    def enter_chunk(self, chunk: int) -> None:
        """φ = ⟨Λ, M⟩ at the chunk's end."""

    def predict_backward(self, layer: int, at: Step) -> None:
        """From dc: the gate's columns of dy, dout, and dc of the layer's input."""

    def mix_backward(self, layer: int, at: Step, dz: Tensor) -> None:
        """From dz: the remaining columns of dy, z again, and the memory's backward."""

    def between_backward(self, layer: int, at: Step, dunit_BD: Tensor) -> None:
        """dc of the layer below, through its norm (layers after the first)."""

    def state_backward(self, at: Step, dunit_BD: Tensor) -> None:
        """ds through the norm; ddrive, dground, dc of the prediction before (gate path)."""

    def ground_backward(self, at: Step, dunit_BD: Tensor) -> None:
        """dc of the prediction before, through the ground product, plus that output's gradient."""

    def leave_chunk(self, chunk: int, start: int, lo: int, hi: int) -> None:
        """Λ at the chunk's start (t = start), cleared for rows that reset there."""


def row_flags(
    hold_BT: Tensor | None, reset_BT: Tensor | None, steps: int, batch: int, device: torch.device
) -> Tensor:
    """(T,B) uint8 flags."""
    flags = torch.zeros(steps, batch, dtype=torch.uint8, device=device)
    if hold_BT is not None:
        flags += hold_BT.t() * HOLD
    if reset_BT is not None:
        flags += reset_BT.t() * RESET
    return flags
