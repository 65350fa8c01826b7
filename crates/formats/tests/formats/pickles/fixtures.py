"""Writes pickles of NumPy's arrays with every protocol that holds bytes.

Run it with NumPy 2 in this folder: `python fixtures.py`.
"""

import pickle
from collections import OrderedDict

import numpy

content = OrderedDict(
    u8=(numpy.arange(600) * 7 % 256).astype(numpy.uint8).reshape(2, 300),
    scalar=numpy.array(-5, dtype=numpy.int32),
    empty=numpy.zeros((0, 3), dtype=numpy.float64),
    f32=numpy.array([[1.5, -0.0], [numpy.inf, 3e-45]], dtype=numpy.float32),
    bools=numpy.array([True, False, True]),
    i64=numpy.array([-(2**62), 1]),
    column=numpy.asfortranarray(numpy.array([[1], [2]], dtype=numpy.int16)),
    labels=[3, 1, 2],
    names=("cat", "dog"),
    raw=bytes(range(256)),
)
for protocol in (2, 3, 4, 5):
    with open(f"protocol{protocol}.pkl", "wb") as f:
        pickle.dump(content, f, protocol=protocol)
for name, value in {
    "objects": numpy.array([{}, None]),
    "complex": numpy.zeros(2, dtype=numpy.complex64),
    "big_endian": numpy.zeros(2, dtype=">i4"),
    "columns": numpy.asfortranarray(numpy.zeros((2, 3))),
    "record": numpy.zeros(2, dtype=[("x", "f4")]),
    "date": numpy.zeros(2, dtype="datetime64[s]"),
    "scalar": numpy.float64(1),
}.items():
    with open(f"refused_{name}.pkl", "wb") as f:
        pickle.dump(value, f, protocol=4)
