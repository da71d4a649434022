"""Arrow arrays that share numpy's memory.

Arrow's own constructors import pandas to check their input, which costs a new Python worker most of a
second. Reading and committing avoid them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def array(
    values: npt.NDArray[Any], kind: pa.DataType, is_null: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Build an array of numbers as wide as `kind`, with optional nulls."""
    validity = None
    if is_null is not None and is_null.any():
        validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Truth values."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def binary_scalar(value: bytes) -> pa.Scalar:
    """Build one value to be used for many rows."""
    edges = pa.py_buffer(np.array([0, len(value)], dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, edges, pa.py_buffer(value)])[0]
