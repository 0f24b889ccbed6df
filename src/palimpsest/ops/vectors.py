"""A few words of SIMD for numba loops: vectors of a width known when the loop is compiled.

numba leaves it to LLVM to find vectors in short loops, and LLVM does not: with 8 to 16 entries it
spends more time proving that arrays do not overlap than computing. Here the vectors are LLVM's own
portable vector type, so that any CPU gets its widest instructions and none needs a special build.
Measured on the pair memory at width 8: 3 times faster forward, 4 times backward, than plain loops.

Only loaded where numba is installed. Offsets count entries of a contiguous array of any shape.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import errors
from numba.core import types
from numba.extending import intrinsic, models, register_model

__all__ = [
    "dot",
    "load",
    "multiply",
    "multiply_add",
    "one_minus_square",
    "scale",
    "scale_add",
    "store",
    "total",
    "zeros_like",
]

_FLAGS = ("contract", "reassoc", "nsz")
_INDEX = ir.IntType(32)


# Whether numba's classes are typed depends on its release; as Any, mypy sees them alike.
_Type: Any = types.Type
_PrimitiveModel: Any = models.PrimitiveModel


class _Vector(_Type):  # type: ignore[misc]
    def __init__(self, entry: Any, width: int) -> None:
        self.entry = entry
        self.width = width
        name = f"palimpsest_vector({entry}, {width})"
        super().__init__(name=name)


class _VectorModel(_PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: _Vector) -> None:
        entry = ir.FloatType() if vector.entry == types.float32 else ir.DoubleType()
        lanes = ir.VectorType(entry, vector.width)
        super().__init__(manager, vector, lanes)


register_model(_Vector)(_VectorModel)


def _lanes(builder: Any, vector: Any, chosen: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_INDEX, len(chosen)), chosen)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _spread(builder: Any, scalar: Any, width: int) -> Any:
    nothing = ir.Constant(ir.VectorType(scalar.type, width), ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(_INDEX, 0))
    return _lanes(builder, first, [0] * width)


def _address(context: Any, builder: Any, sig: Any, args: Any, width: int) -> Any:
    array = context.make_array(sig.args[0])(context, builder, args[0])
    entry = array.data.type.pointee
    pointer = builder.gep(array.data, [args[1]])
    return builder.bitcast(pointer, ir.VectorType(entry, width).as_pointer())


def _sum_lanes(builder: Any, vector: Any, width: int) -> Any:
    while width > 1 and width % 2 == 0:
        width //= 2
        low = _lanes(builder, vector, list(range(width)))
        high = _lanes(builder, vector, list(range(width, 2 * width)))
        vector = builder.fadd(low, high, flags=_FLAGS)
    result = builder.extract_element(vector, ir.Constant(_INDEX, 0))
    for lane in range(1, width):
        entry = builder.extract_element(vector, ir.Constant(_INDEX, lane))
        result = builder.fadd(result, entry, flags=_FLAGS)
    return result


def _load(typing: Any, array: Any, offset: Any, width: Any) -> Any:
    """``load(array, offset, width)``: a vector; the width must be a constant."""
    if not isinstance(width, types.IntegerLiteral):
        raise errors.RequireLiteralValue("width")
    vector = _Vector(array.dtype, width.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _address(context, builder, sig, args, vector.width)
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return vector(array, types.intp, width), generate


def _store(typing: Any, array: Any, offset: Any, vector: Any) -> Any:
    """``store(array, offset, vector)``."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _address(context, builder, sig, args, vector.width)
        builder.store(args[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


def _zeros_like(typing: Any, vector: Any) -> Any:
    """``zeros_like(vector)``."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(args[0].type, None)

    return vector(vector), generate


def _scale(typing: Any, scalar: Any, vector: Any) -> Any:
    """``scale(scalar, vector)``: their product."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fmul(_spread(builder, args[0], vector.width), args[1], flags=_FLAGS)

    return vector(vector.entry, vector), generate


def _scale_add(typing: Any, scalar: Any, vector: Any, addend: Any) -> Any:
    """``scale_add(scalar, vector, addend)``: scalar · vector + addend."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        product = builder.fmul(_spread(builder, args[0], vector.width), args[1], flags=_FLAGS)
        return builder.fadd(product, args[2], flags=_FLAGS)

    return vector(vector.entry, vector, vector), generate


def _multiply_add(typing: Any, left: Any, right: Any, addend: Any) -> Any:
    """``multiply_add(left, right, addend)``: left · right + addend, entry by entry."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fadd(builder.fmul(args[0], args[1], flags=_FLAGS), args[2], flags=_FLAGS)

    return left(left, left, left), generate


def _multiply(typing: Any, left: Any, right: Any) -> Any:
    """``multiply(left, right)``: entry by entry."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fmul(args[0], args[1], flags=_FLAGS)

    return left(left, left), generate


def _one_minus_square(typing: Any, vector: Any) -> Any:
    """``one_minus_square(vector)``: the slope of tanh where its value is the vector."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        ones = ir.Constant(args[0].type, [1.0] * vector.width)
        return builder.fsub(ones, builder.fmul(args[0], args[0], flags=_FLAGS), flags=_FLAGS)

    return vector(vector), generate


def _dot(typing: Any, left: Any, right: Any) -> Any:
    """``dot(left, right)``: a scalar."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        product = builder.fmul(args[0], args[1], flags=_FLAGS)
        return _sum_lanes(builder, product, left.width)

    return left.entry(left, left), generate


def _total(typing: Any, vector: Any) -> Any:
    """``total(vector)``: the sum of its entries."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _sum_lanes(builder, args[0], vector.width)

    return vector.entry(vector), generate


load: Any = intrinsic(_load)
store: Any = intrinsic(_store)
zeros_like: Any = intrinsic(_zeros_like)
scale: Any = intrinsic(_scale)
scale_add: Any = intrinsic(_scale_add)
multiply_add: Any = intrinsic(_multiply_add)
multiply: Any = intrinsic(_multiply)
one_minus_square: Any = intrinsic(_one_minus_square)
dot: Any = intrinsic(_dot)
total: Any = intrinsic(_total)
