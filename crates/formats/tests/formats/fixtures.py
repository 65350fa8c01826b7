"""Writes the files in `pytorch/`: checkpoints of every form, and beside each what it holds as a safetensors file.

Run it with PyTorch 2.9 or newer in this folder: `python fixtures.py`.
"""

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy
import torch

OUT = Path("pytorch")
OUT.mkdir(exist_ok=True)
NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip


def tensors(value, path=""):
    """Every tensor within, under its path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, part in parts:
        yield from tensors(part, f"{path}.{key}" if path else str(key))


def expect(name, value):
    header, data = {}, b""
    for path, t in tensors(value):
        flat = t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        offsets = [len(data), len(data) + len(flat)]
        header[path] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": offsets}
        data += flat
    text = json.dumps(header).encode()
    (OUT / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def save(name, value, **options):
    torch.save(value, OUT / f"{name}.pt", **options)
    expect(name, value)


def rewrite(name, new, change):
    """A copy of a zip file whose entries `change` gives anew."""
    with zipfile.ZipFile(OUT / f"{name}.pt") as old, zipfile.ZipFile(OUT / f"{new}.pt", "w") as to:
        for entry in old.infolist():
            change(to, entry.filename, old.read(entry))


torch.manual_seed(0)
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
parameter = torch.nn.Parameter(torch.randn(2, 3))
parameter.note = "an attribute"
state = OrderedDict(weight=torch.nn.Parameter(torch.randn(3, 2)), bias=torch.randn(3))
state._metadata = OrderedDict([("", {"version": 1})])
everything = {
    "dtypes": {str(d)[6:]: (torch.arange(7) - 3).abs().to(d) if d != torch.bool else torch.arange(7) % 2 == 1 for d in NAMES},
    "views": [base, base[1:3], base.t(), base[:, ::2], base[2, 3], base.view(-1)[5:5], base[:1].expand(3, 6)],
    "odd": (torch.tensor(3.5), torch.zeros(0), torch.zeros(2, 0, 3), torch.zeros(2, 1, 1, 1, 3), torch.zeros(1).expand(0, 4)),
    "bits": torch.tensor([0x7FC12345, 0x7F800000, -0x800000, -0x80000000, 1], dtype=torch.int32).view(torch.float32),
    "model": state,
    "parameter": parameter,
    "epoch": 7, "loss": 0.1, "seed": 2**64 - 1, "negative": -(2**40), "flag": True, "none": None,
    "text": "Grüße \\ \n'", "bytes": b"\x00\xff", "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
    "device": torch.device("cuda:1"), "milestones": Counter([30, 80]), 5: "five", "list": [1, [2, (3,)]],
}  # fmt: skip
save("zip", everything)
save("legacy", everything, _use_new_zipfile_serialization=False)
save("protocol4", everything, pickle_protocol=4)
save("tensor", torch.arange(3))
torch.serialization.set_crc32_options(False)
save("no_checksum", state)
torch.serialization.set_crc32_options(True)


def swapped(to, name, data):
    sizes = {key: t.element_size() for key, (_, t) in enumerate(tensors(big))}
    folder, _, rest = name.partition("/")
    if rest == "byteorder":
        data = b"big"
    elif rest.startswith("data/"):
        size = sizes[int(rest[5:])]
        data = b"".join(data[i : i + size][::-1] for i in range(0, len(data), size))
    to.writestr(name, data)


big = {str(d)[6:]: torch.arange(5).to(d) for d in NAMES}
save("little", big)
rewrite("little", "big_endian", swapped)
rewrite("little", "compressed", lambda to, name, data: to.writestr(name, data, zipfile.ZIP_DEFLATED))
for name in ["big_endian", "compressed"]:
    expect(name, big)
    for (key, a), (_, b) in zip(tensors(torch.load(OUT / f"{name}.pt")), tensors(big), strict=True):
        # PyTorch forgets to swap the dtypes whose storages are of bytes.
        assert torch.equal(a, b) or key in ("uint16", "uint32", "uint64"), key
for name in ["little.pt", "little.safetensors"]:
    (OUT / name).unlink()


def tar(name):
    """What PyTorch wrote before 0.1.10."""
    plain, half = torch.arange(6.0).reshape(2, 3), torch.arange(4).to(torch.float16)
    part = plain[1:]
    held = {"plain": plain, "turned": plain.t(), "half": half, "part": part, "zero": torch.tensor(2.0)}
    stored = [(11, plain, torch.FloatStorage), (12, half, torch.HalfStorage), (13, held["zero"], torch.FloatStorage)]
    dump = lambda value: pickle.dumps(value, protocol=2)
    storages = dump(len(stored))
    for key, t, kind in stored:
        storages += dump((key, "cpu", kind)) + struct.pack("<q", t.numel()) + t.numpy().tobytes()
    storages += dump([(14, 11, 3, 3)])
    listed = [(21, plain, 11, 0), (22, plain.t(), 11, 0), (23, half, 12, 0), (24, part, 14, 0), (25, held["zero"], 13, 0)]
    body = dump(len(listed))
    for key, t, storage, offset in listed:
        body += dump((key, storage, torch.FloatTensor)) + struct.pack("<ii", t.dim(), 0)
        body += struct.pack(f"<{2 * t.dim()}q", *t.shape, *t.stride()) + struct.pack("<q", offset)
    keys = {id(t): key for (key, *_), t in zip(listed, held.values())}

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return keys.get(id(value))

    object_ = io.BytesIO()
    held = dict(zip(held, [plain, held["turned"], half, part, held["zero"]]))
    Pickler(object_, protocol=2).dump(held | {"epoch": 3})
    with tarfile.open(OUT / f"{name}.pt", "w") as archive:
        for member, data in [("sys_info", dump({})), ("storages", storages), ("tensors", body), ("pickle", object_.getvalue())]:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    expect(name, held)
    back = torch.load(OUT / f"{name}.pt", weights_only=False)
    for key, t in held.items():
        assert torch.equal(t, back[key]), key


tar("tar")

refused = OUT / "refused"
refused.mkdir(exist_ok=True)
plain = torch.ones(2)
for name, value in {
    "complex": torch.zeros(2, dtype=torch.complex64),
    "complex_half": torch.zeros(2, dtype=torch.complex32),
    "conj": torch.zeros(2, dtype=torch.complex64).conj(),
    "neg": torch._neg_view(plain),
    "quantised": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
    "sparse": torch.eye(2).to_sparse(),
    "csr": torch.eye(2).to_sparse_csr(),
    "nested": torch.nested.nested_tensor([plain]),
    "meta": torch.ones(2, device="meta"),
    "numpy": numpy.float64(0.5),
    "module": torch.nn.Linear(1, 1),
    "storage": plain.untyped_storage(),
}.items():
    torch.save({"model": {"x": value}}, refused / f"{name}.pt")
torch.save({"model": {"x": plain.to(torch.float8_e4m3fn)}}, OUT / "float8.pt")
torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), refused / "torchscript.pt")

x, y = torch.randn(5, 3), torch.randn(5, 2)


def train(name, make):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = make(model)

    def steps():
        for _ in range(3):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()

    steps()
    before = {"model": {k: v.clone() for k, v in model.state_dict().items()}, "optimizer": optimizer.state_dict(), "x": x, "y": y}
    file = io.BytesIO()
    torch.save(before, file)
    steps()
    before = torch.load(io.BytesIO(file.getvalue()))
    torch.save(before | {"after": model.state_dict()}, OUT / f"{name}.pt")


train("sgd", lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
train("momentum", lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01))
train("nesterov", lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True))
train("adam", lambda m: torch.optim.Adam(m.parameters(), lr=0.05, betas=(0.8, 0.95), amsgrad=True))
train("adamw", lambda m: torch.optim.AdamW([{"params": m[0].parameters(), "lr": 0.01}, {"params": m[2].parameters()}], lr=0.05))
