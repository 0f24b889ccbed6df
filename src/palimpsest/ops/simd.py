"""Scalar building blocks for numba kernels, written so that their loops become vector code.

Loads and stores of bf16 (kept as uint16), a polynomial exp, and the functions built on it, for
fp32 and fp64. A loop vectorises only without calls, branches or a check for division by zero, so
kernels are compiled with :data:`OPTIONS`. NaN passes through every function: training must see it.

A loop that sums must not store. LLVM guards a vectorised loop with stores by a check of addresses:
if an output starts close behind an input, the scalar loop runs instead. Both give the same
elements, but sum in another order, so that a result would depend on where the allocator put the
arrays. tests/ops/test_addresses.py calls every kernel with its arrays at many distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from palimpsest.ops.kernel_cache import compile_function

__all__ = ["OPTIONS", "exp", "get", "jit", "put", "sigmoid", "softplus", "tanh"]

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS: dict[str, Any] = {
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},  # not nnan, ninf: they may drop NaN checks
    "error_model": "numpy",
    "nogil": True,
    "_nrt": False,  # views of arguments need no reference counts; kernels allocate nothing
}


def jit(kernel: F) -> F:
    """Compile a kernel with :data:`OPTIONS` on first use; the result is cached on disk."""
    compiled: F = compile_function(kernel, OPTIONS)
    return compiled


_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


@intrinsic  # type: ignore[untyped-decorator]
def _widen(typing_context: Any, bits: Any) -> Any:
    """bf16 bits → fp32."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(args[0], _I32), _I32(16)), _F32)

    return types.float32(types.uint16), code


@intrinsic  # type: ignore[untyped-decorator]
def _narrow(typing_context: Any, value: Any) -> Any:
    """fp32 → bf16 bits, to nearest even; every NaN becomes the quiet one."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], _I32)
        odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        rounded = builder.lshr(builder.add(builder.add(bits, _I32(0x7FFF)), odd), _I32(16))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(is_nan, _I32(0x7FC0), rounded), _I16)

    return types.uint16(types.float32), code


@intrinsic  # type: ignore[untyped-decorator]
def _round(typing_context: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rint = builder.module.declare_intrinsic("llvm.rint", [_F32])
        return builder.call(rint, [args[0]])

    return types.float32(types.float32), code


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(typing_context: Any, exponent: Any) -> Any:
    """2^n for a whole fp32 n in [−126, 127], through the exponent's bits."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n = builder.fptosi(args[0], _I32)
        return builder.bitcast(builder.shl(builder.add(n, _I32(127)), _I32(23)), _F32)

    return types.float32(types.float32), code


_LOW, _HIGH = np.float32(-87.3), np.float32(88.0)  # e^x stays a normal fp32 number
_LOG2E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P5, _P4, _P3 = np.float32(1.98756915e-4), np.float32(1.39819995e-3), np.float32(8.33345191e-3)
_P2, _P1, _P0 = np.float32(4.16657959e-2), np.float32(1.66666655e-1), np.float32(5.00000012e-1)
_ONE32, _ONE64 = np.float32(1.0), np.float64(1.0)
_TWO, _ENDS = np.float32(2.0), np.float32(20.0)  # from half of that on tanh is 1 in fp32


@jit
def _exp32(x: Any) -> Any:
    """e^x to 2 ulp: 2^n · e^r with |r| ≤ ln2/2, e^r by a minimax polynomial of degree 7."""
    x = _LOW if x < _LOW else x
    x = _HIGH if x > _HIGH else x
    n = _round(x * _LOG2E)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
    return (p * r * r + r + _ONE32) * _power_of_two(n)


def exp(x: Any) -> Any:
    """e^x; fp32 saturates at e^−87.3 and e^88 instead of 0 and ∞."""
    raise NotImplementedError("only inside numba code")


@overload(exp, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _exp(x: Any) -> Any:
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: math.exp(x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^−x)."""
    raise NotImplementedError("only inside numba code")


@overload(sigmoid, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _sigmoid(x: Any) -> Any:
    if x == types.float32:
        return lambda x: _ONE32 / (_ONE32 + _exp32(-x))
    return lambda x: _ONE64 / (_ONE64 + math.exp(-x))


@jit
def _tanh32(x: Any) -> Any:
    """(e^2x - 1) / (e^2x + 1), e^2x - 1 without cancelling: 2^n·(e^r - 1) + (2^n - 1)."""
    y = abs(x) * _TWO
    y = _ENDS if y > _ENDS else y
    n = _round(y * _LOG2E)
    r = y - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
    power = _power_of_two(n)
    less_one = (p * r * r + r) * power + (power - _ONE32)
    size = less_one / (less_one + _TWO)
    return -size if x < 0 else size


def tanh(x: Any) -> Any:
    """The hyperbolic tangent; fp32 to 3 ulp everywhere, and odd to the last bit."""
    raise NotImplementedError("only inside numba code")


@overload(tanh, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _tanh(x: Any) -> Any:
    if x == types.float32:
        return lambda x: _tanh32(x)
    return lambda x: math.tanh(x)


def softplus(x: Any) -> Any:
    """log(1 + e^x) without overflow; for few values, not vectorised."""
    raise NotImplementedError("only inside numba code")


@overload(softplus, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _softplus(x: Any) -> Any:
    return lambda x: (x if x > 0 else x * 0) + math.log1p(math.exp(-abs(x)))


def get(array: Any, i: int) -> Any:
    """array[i], widened to fp32 where the array holds bf16 bits."""
    raise NotImplementedError("only inside numba code")


@overload(get, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _get(array: Any, i: Any) -> Any:
    if array.dtype == types.uint16:
        return lambda array, i: _widen(array[i])
    return lambda array, i: array[i]


def put(array: Any, i: int, value: Any) -> None:
    """array[i] = value, rounded to bf16 where the array holds bf16 bits."""
    raise NotImplementedError("only inside numba code")


@overload(put, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _put(array: Any, i: Any, value: Any) -> Any:
    if array.dtype == types.uint16:

        def narrow(array: Any, i: Any, value: Any) -> None:
            array[i] = _narrow(value)

        return narrow

    def store(array: Any, i: Any, value: Any) -> None:
        array[i] = value

    return store
