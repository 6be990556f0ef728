"""What the compiler can do and Numba does not offer: wide registers, the lowest one of a word, and their number."""

from typing import Any

from numba import types
from numba.extending import intrinsic


def _wide_vectors(typing_context):  # type: ignore[no-untyped-def]
    """Compile the function that calls this apart from its callers, with registers of 512 bits where there are any.

    LLVM prefers 256 bits on such processors, for the sake of older ones that slowed down, and vectorizes loops
    less well once several functions have become one. A string attribute passes through llvmlite only past its list
    of known ones, hence `set.add`.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), code


def _lowest_bit(typing_context, word):  # type: ignore[no-untyped-def]
    """Return the place of the lowest one of a `uint64`; 64 where there is none."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), code


def _count_ones(typing_context, word):  # type: ignore[no-untyped-def]
    """Return how many ones a `uint64` has."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), code


wide_vectors: Any = intrinsic(_wide_vectors)
lowest_bit: Any = intrinsic(_lowest_bit)
count_ones: Any = intrinsic(_count_ones)
