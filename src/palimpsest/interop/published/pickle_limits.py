"""Limits on a pickle's depth, work and memory, checked before anything in it is run.

A small file can ask for much: tuples nested a hundred thousand deep overflow the stack when they
are hashed, forty tuples that each hold the one before twice take 2^40 steps to hash, and a hundred
references to one buffer make a hundred arrays of it. The limits here leave room for every
checkpoint, whose containers are few levels deep and whose arrays each have bytes of their own.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any

__all__ = ["DEPTH", "Budget", "LimitError", "Outline"]

DEPTH = 100  # containers within containers
WORK = 100  # items reached through all containers, for each instruction
LEAST_WORK = 100_000
COPIES = 4  # bytes made from the file's bytes, as a multiple of the file's size
LEAST_BYTES = 1024

CHANGES = frozenset(("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"))
PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))


class LimitError(Exception):
    """A pickle that asks for more than a checkpoint of its size needs."""


@dataclass(eq=False, slots=True)
class _Item:
    """What is known of a value without making it.

    Attributes:
        depth: containers from it to its deepest part.
        size: items reached through it, a shared one as often as it is reached.
    """

    depth: int = 0
    size: int = 1


class Outline:
    """Follows the unpickler's stack, with depths and sizes in place of values."""

    def __init__(self) -> None:
        self._stack: list[_Item | None] = []  # None is a mark
        self._memo: dict[int, _Item] = {}
        self._work = 0
        self._count = 0

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Take the next instruction.

        Raises:
            LimitError: too deep, or too much work.
            ValueError: the instruction finds too little on the stack.
        """
        self._count += 1
        name = opcode.name
        if name == "MARK":
            self._stack.append(None)
        elif name == "DUP":
            self._stack.append(self._top())
        elif name == "POP":
            self._pop_any()
        elif name == "POP_MARK":
            self._to_mark()
        elif name in PUTS:
            self._memo[int(argument)] = self._top()
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._top()
        elif name in GETS:
            if int(argument) not in self._memo:
                raise ValueError(f"memo position {argument} is empty")
            self._stack.append(self._memo[int(argument)])
        else:
            self._make(opcode)

    def _make(self, opcode: pickletools.OpcodeInfo) -> None:
        before = opcode.stack_before
        parts: list[_Item] = []
        if pickletools.markobject in before:
            parts = self._to_mark()
            before = before[: before.index(pickletools.markobject)]
        for _ in before:
            parts.insert(0, self._pop())
        if opcode.name in CHANGES:
            target, parts = parts[0], parts[1:]
        else:
            target = _Item()
        if parts:
            target.depth = max(target.depth, 1 + max(part.depth for part in parts))
            added = sum(part.size for part in parts)
            target.size += added
            self._work += added
        if target.depth > DEPTH:
            raise LimitError(f"containers nested more than {DEPTH} deep")
        if self._work > LEAST_WORK + WORK * self._count:
            raise LimitError("containers that share their parts so often that reading never ends")
        self._stack.extend([target] * len(opcode.stack_after))

    def _top(self) -> _Item:
        if not self._stack or self._stack[-1] is None:
            raise ValueError("the stack is empty")
        return self._stack[-1]

    def _pop(self) -> _Item:
        item = self._top()
        self._stack.pop()
        return item

    def _pop_any(self) -> None:
        if not self._stack:
            raise ValueError("the stack is empty")
        self._stack.pop()

    def _to_mark(self) -> list[_Item]:
        parts: list[_Item] = []
        while self._stack:
            item = self._stack.pop()
            if item is None:
                return parts[::-1]
            parts.append(item)
        raise ValueError("a mark is missing")


class Budget:
    """Bytes and items that may be made from a file.

    Args:
        size: of the file, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = LEAST_BYTES + COPIES * size

    def spend(self, amount: int) -> None:
        """Account for what is about to be made.

        Raises:
            LimitError: it is more than the file can honestly hold.
        """
        self._left -= amount
        if self._left < 0:
            raise LimitError("arrays or containers made again and again from the same bytes")

    def spend_items(self, items: Any) -> None:
        """Account for hashing items, a shared one as often as it is reached."""
        waiting = [items]
        while waiting:
            item = waiting.pop()
            self.spend(1)
            if isinstance(item, (dict, tuple, list, frozenset, set)):
                waiting.extend(item)
