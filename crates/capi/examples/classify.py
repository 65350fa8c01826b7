"""Runs the entry `forward` of a package on images: classify.py LIBRARY MODEL.kiln IMAGES CHANCES.

IMAGES holds f32 numbers, as many images [1, 6, 6] as there are; CHANCES gets f32 numbers [n, 5]. Needs NumPy and no
build step: LIBRARY is `libkiln_c.so`, which `cargo build --release -p kiln-capi` makes.
"""

import ctypes as c
import json
import sys

import numpy as np

DTYPES = ["bool", "u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", None, "f4", "f8"]


class View(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("bytes", c.c_size_t),
        ("dtype", c.c_int32),
        ("rank", c.c_uint32),
        ("shape", c.POINTER(c.c_int64)),
    ]


PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
capsule = c.pythonapi.PyCapsule_New
capsule.restype, capsule.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
pointer = c.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
rename = c.pythonapi.PyCapsule_SetName
rename.argtypes = [c.py_object, c.c_char_p]


class Shared:
    """A tensor of the library's for `from_dlpack` of NumPy, PyTorch and others, without a copy where they can."""

    def __init__(self, kiln, tensor):
        self.kiln, self.tensor = kiln, tensor

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, max_version=None, **_):
        versioned = max_version is not None and max_version[0] >= 1
        name = "kiln_tensor_to_dlpack" + ("_versioned" if versioned else "")
        return capsule(self.kiln.made(name, self.tensor), VERSIONED if versioned else PLAIN, None)


class Kiln:
    """The library; calls that fail raise."""

    def __init__(self, path):
        self.lib = c.CDLL(path)
        self.lib.kiln_last_error.restype = c.c_char_p
        self.lib.kiln_describe.restype = c.c_char_p
        self.lib.kiln_describe.argtypes = [c.c_void_p]
        for free in (self.lib.kiln_tensor_free, self.lib.kiln_entry_free, self.lib.kiln_package_free):
            free.argtypes = [c.c_void_p]

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {status}: {self.lib.kiln_last_error().decode()}")

    def made(self, name, *arguments):
        handle = c.c_void_p()
        self.call(name, *arguments, c.byref(handle))
        return handle

    def taken(self, tensor):
        """A tensor of the library's as an array, which keeps it."""
        array = np.from_dlpack(Shared(self, tensor))
        self.lib.kiln_tensor_free(tensor)
        return array

    def tensor(self, array):
        """An array as a tensor of the library's, without a copy where it is row-major and aligned to 64 bytes."""
        given = array.__dlpack__()
        tensor = self.made("kiln_tensor_from_dlpack", c.c_void_p(pointer(given, PLAIN)))
        rename(given, b"used_dltensor")
        return tensor


def view(array):
    """An array as the library takes it, and what must live as long."""
    array = np.ascontiguousarray(array)
    shape = (c.c_int64 * array.ndim)(*array.shape)
    dtype = DTYPES.index("bool" if array.dtype == bool else array.dtype.str[1:])
    return View(array.ctypes.data, array.nbytes, dtype, array.ndim, shape), (array, shape)


class Entry:
    def __init__(self, kiln, package, name):
        self.kiln, self.handle = kiln, kiln.made("kiln_entry", package, name.encode())
        inputs, outputs = c.c_size_t(), c.c_size_t()
        kiln.call("kiln_entry_counts", self.handle, c.byref(inputs), c.byref(outputs))
        self.outputs = outputs.value

    def __call__(self, *arrays):
        views, kept = zip(*(view(a) for a in arrays))
        results = (c.c_void_p * self.outputs)()
        given = (View * len(views))(*views)
        self.kiln.call("kiln_run", self.handle, given, c.c_size_t(len(views)), results, c.c_size_t(self.outputs))
        del kept
        return [self.kiln.taken(c.c_void_p(r)) for r in results]


def main(library, model, images, chances):
    kiln = Kiln(library)
    package = kiln.made("kiln_open", model.encode(), c.c_uint32(0))
    about = json.loads(kiln.lib.kiln_describe(package))
    print([entry["name"] for entry in about["entries"]], len(about["state"]), "states")
    forward = Entry(kiln, package, "forward")
    x = np.fromfile(images, np.float32).reshape(-1, 1, 6, 6)
    (y,) = forward(x)
    # State is set and read.
    weight = kiln.taken(kiln.made("kiln_state_get", package, b"conv.weight"))
    tensor = kiln.tensor(weight * 2)
    kiln.call("kiln_state_set", package, b"conv.weight", tensor)
    kiln.lib.kiln_tensor_free(tensor)
    assert not np.array_equal(forward(x)[0], y)
    kiln.call("kiln_state_reset", package)
    assert np.array_equal(forward(x)[0], y)
    y.tofile(chances)
    try:
        forward(x[:, :, :, :5])
    except RuntimeError as wrong:
        print("expected:", wrong)
    kiln.lib.kiln_entry_free(forward.handle)
    kiln.lib.kiln_package_free(package)


if __name__ == "__main__":
    main(*sys.argv[1:])
