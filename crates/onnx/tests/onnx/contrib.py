"""Makes models of onnxruntime's own operators, of quantised ones, of loops, text and machine learning, with inputs and onnxruntime's outputs:

    contrib.py FOLDER    (with onnx and onnxruntime 1.32)

`tests/goldens/onnx_contrib.tar.xz` holds what it wrote.
"""

import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FOLDER = sys.argv[1]
RNG = np.random.default_rng(20261129)
MS = "com.microsoft"
ML = "ai.onnx.ml"


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def seeded(*shape):
    """Floats that leave the numbers of the cases behind as they are."""
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def integers(dtype, *shape, low=None, high=None):
    info = np.iinfo(dtype)
    return RNG.integers(info.min if low is None else low, (info.max if high is None else high) + 1, shape).astype(dtype)


def port(name, value):
    if not isinstance(value, dict):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    keys = TensorProto.STRING if isinstance(next(iter(value)), str) else I64
    return helper.make_value_info(name, helper.make_map_type_proto(keys, helper.make_tensor_type_proto(F, [])))


def message(value):
    if not isinstance(value, dict):
        return numpy_helper.from_array(np.asarray(value))
    values = [numpy_helper.from_array(np.float32(v)) for v in value.values()]
    keys = [k.encode() if isinstance(k, str) else k for k in value]
    kind = TensorProto.STRING if isinstance(keys[0], bytes) else I64
    return helper.make_map("", kind, keys, helper.make_sequence("", onnx.SequenceProto.TENSOR, values))


def case(name, nodes, inputs, outputs, initial=None, like=None):
    """A model whose inputs are arrays by name, with constants by name. With `like`, its outputs are those of other nodes,
    which onnxruntime has on the CPU."""
    ports = [port(n, a) for n, a in inputs.items()]
    results = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    constants = [numpy_helper.from_array(a, n) for n, a in (initial or {}).items()]
    graph = helper.make_graph(nodes, name, ports, results, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    if any(n.domain == ML for n in nodes):
        opsets.append(helper.make_opsetid(ML, 3))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = model
    if like:
        run = helper.make_model(helper.make_graph(like, name, ports, results, constants), opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(run.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(None, inputs)
    folder = os.path.join(FOLDER, name, "test_data_set_0")
    os.makedirs(folder)
    onnx.save(model, os.path.join(FOLDER, name, "model.onnx"))
    for kind, arrays in ("input", inputs.values()), ("output", found):
        for i, a in enumerate(arrays):
            with open(os.path.join(folder, f"{kind}_{i}.pb"), "wb") as f:
                f.write(message(a).SerializeToString())


def node(op, inputs, outputs, domain=MS, **attributes):
    return helper.make_node(op, inputs, outputs, domain=domain, **attributes)


F, U8, I8, I32, I64 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64

case("gelu", [node("Gelu", ["x"], ["y"])], {"x": floats(3, 7)}, {"y": F})
case("bias_gelu", [node("BiasGelu", ["x", "b"], ["y"])], {"x": floats(3, 7), "b": floats(7)}, {"y": F})
case("fast_gelu", [node("FastGelu", ["x", "b"], ["y"])], {"x": floats(3, 7), "b": floats(7)}, {"y": F})
case("quick_gelu", [node("QuickGelu", ["x"], ["y"], alpha=1.3)], {"x": floats(3, 7)}, {"y": F})
case(
    "fused_matmul",
    [node("FusedMatMul", ["a", "b"], ["y"], alpha=0.5, transA=1, transB=1)],
    {"a": floats(2, 5, 3), "b": floats(2, 4, 5)},
    {"y": F},
)
for skip in ("bias", "plain"):
    names = ["x", "s", "g", "be"] + (["b"] if skip == "bias" else [])
    arrays = {"x": floats(2, 3, 8), "s": floats(2, 3, 8), "g": floats(8), "be": floats(8), "b": floats(8)}
    case(
        f"skip_layer_norm_{skip}",
        [node("SkipLayerNormalization", names, ["y", "", "", "sum"], epsilon=1e-5)],
        {n: arrays[n] for n in names},
        {"y": F, "sum": F},
    )
case(
    "skip_simplified_layer_norm",
    [node("SkipSimplifiedLayerNormalization", ["x", "s", "g"], ["y", "", "", "sum"], epsilon=1e-5)],
    {"x": floats(2, 3, 8), "s": floats(2, 3, 8), "g": floats(8)},
    {"y": F, "sum": F},
)
case(
    "simplified_layer_norm",
    [node("SimplifiedLayerNormalization", ["x", "g"], ["y"], domain="", epsilon=1e-5, axis=-1)],
    {"x": floats(2, 3, 8), "g": floats(8)},
    {"y": F},
)



def tables(half):
    angles = np.outer(np.arange(16), 1.0 / 10000 ** (np.arange(half) / half)).astype(np.float32)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


TABLES = tables(4)
for form in (0, 1):
    case(
        f"rotary_{form}",
        [node("RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], interleaved=form)],
        {"x": floats(2, 5, 16), "p": integers(np.int64, 2, 5, low=0, high=15)},
        {"y": F},
        TABLES,
    )
case(
    "rotary_first",
    [node("RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"])],
    {"x": floats(2, 3, 5, 8), "p": np.array([4], np.int64)},
    {"y": F},
    TABLES,
)

qkv = {"q": floats(2, 4, 12), "k": floats(2, 6, 12), "v": floats(2, 6, 12)}
case("mha", [node("MultiHeadAttention", ["q", "k", "v"], ["y"], num_heads=3)], qkv, {"y": F})
case(
    "mha_bias_mask",
    [node("MultiHeadAttention", ["q", "k", "v", "b", "m"], ["y"], num_heads=3)],
    {**qkv, "b": floats(36), "m": np.array([[1, 1, 1, 0, 0, 0], [1] * 6], np.int32)},
    {"y": F},
)
case(
    "mha_past",
    [node("MultiHeadAttention", ["q", "k", "v", "", "", "", "pk", "pv"], ["y", "nk", "nv"], num_heads=3)],
    {
        "q": floats(2, 4, 12),
        "k": floats(2, 4, 12),
        "v": floats(2, 4, 12),
        "pk": floats(2, 3, 5, 4),
        "pv": floats(2, 3, 5, 4),
    },
    {"y": F, "nk": F, "nv": F},
)
for rotary in (0, 1):
    used = tables(8) if rotary else {}
    case(
        f"gqa_{rotary}",
        [
            node(
                "GroupQueryAttention",
                ["q", "k", "v", "pk", "pv", "last", "total"] + list(used),
                ["y", "nk", "nv"],
                num_heads=4,
                kv_num_heads=2,
                do_rotary=rotary,
            )
        ],
        {
            "q": floats(2, 1, 64),
            "k": floats(2, 1, 32),
            "v": floats(2, 1, 32),
            "pk": floats(2, 2, 5, 16),
            "pv": floats(2, 2, 5, 16),
        },
        {"y": F, "nk": F, "nv": F},
        {**used, "last": np.array([5, 5], np.int32), "total": np.array(6, np.int32)},
    )
case(
    "gqa_packed",
    [
        node(
            "GroupQueryAttention",
            ["q", "", "", "pk", "pv", "last", "total", "cos", "sin"],
            ["y", "nk", "nv"],
            num_heads=4,
            kv_num_heads=2,
            do_rotary=1,
        )
    ],
    {"q": seeded(2, 1, 128), "pk": seeded(2, 2, 5, 16), "pv": seeded(2, 2, 5, 16)},
    {"y": F, "nk": F, "nv": F},
    {**tables(8), "last": np.array([5, 5], np.int32), "total": np.array(6, np.int32)},
)
weights = {"w": seeded(10, 36), "b": seeded(36)}
for name, rest, attributes in (
    ("plain", {}, {}),
    ("flags", {"m": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)}, {"scale": 0.3}),
    ("lengths", {"m": np.array([5, 2], np.int32)}, {}),
    ("bias", {"bias": seeded(2, 3, 5, 5)}, {}),
    ("past", {"p": seeded(2, 2, 3, 4, 4)}, {"unidirectional": 1}),
    ("sizes", {}, {"qkv_hidden_sizes": [6, 6, 24]}),
):
    names = ["x", "w", "b"] + ["m" if "m" in rest else "", "p" if "p" in rest else "", "bias" if "bias" in rest else ""]
    case(
        f"attention_{name}",
        [node("Attention", names, ["y"] + ["present"] * (name == "past"), num_heads=3, **attributes)],
        {"x": seeded(2, 5, 10), **rest},
        {"y": F} | ({"present": F} if name == "past" else {}),
        weights,
    )
own = lambda op, *a, **k: helper.make_node(op, *a, **k)
split = lambda x, *names: [
    own("Split", [x], [f"{n}5" for n in names], axis=3, num_outputs=len(names)),
    *(own("Squeeze", [f"{n}5", "three"], [f"{n}4"]) for n in names),
    *(own("Reshape", [f"{n}4", "flat"], [n]) for n in names),
]
shapes = {"three": np.array([3], np.int64), "flat": np.array([0, 0, -1], np.int64)}
case(
    "mha_packed",
    [node("MultiHeadAttention", ["x", "", "", "b"], ["y"], num_heads=3)],
    {"x": seeded(2, 5, 3, 3, 4)},
    {"y": F},
    {"b": seeded(36), **shapes},
    split("x", "q", "k", "v") + [node("MultiHeadAttention", ["q", "k", "v", "b"], ["y"], num_heads=3)],
)
case(
    "mha_packed_keys",
    [node("MultiHeadAttention", ["q", "x"], ["y"], num_heads=3)],
    {"q": seeded(2, 5, 12), "x": seeded(2, 6, 3, 2, 4)},
    {"y": F},
    shapes,
    split("x", "k", "v") + [node("MultiHeadAttention", ["q", "k", "v"], ["y"], num_heads=3)],
)
case(
    "mha_keys_of_another",
    [node("MultiHeadAttention", ["q", "k", "v", "b"], ["y", "", "", "qk"], num_heads=3)],
    {"q": seeded(2, 5, 12), "k": seeded(2, 3, 6, 4), "v": seeded(2, 3, 7, 4)[:, :, 1:]},
    {"y": F, "qk": F},
    {"b": seeded(36)},
)
for name, m in (
    ("all", np.array([[0, 0, 0, 0, 0], [0, 1, 1, 0, 1]], np.int32)),
    ("ends", np.array([5, 3, 0, 5, 8, 0, 5, 8], np.int32)),
    ("positions", np.tril(np.ones((2, 5, 5), np.int32))),
):
    case(
        f"mha_mask_{name}",
        [node("MultiHeadAttention", ["q", "k", "v", "", "m"], ["y"], num_heads=3, unidirectional=int(name == "all"))],
        {"q": seeded(2, 5, 12), "k": seeded(5, 2, 12).reshape(2, 5, 12), "v": seeded(12, 5, 2).reshape(2, 5, 12), "m": m},
        {"y": F},
    )
for used in (0, 3):
    case(
        f"mha_buffer_{used}",
        [
            node(
                "MultiHeadAttention",
                ["q", "k", "v", "", "", "", "pk", "pv", "n"],
                ["y", "nk", "nv"],
                num_heads=3,
            )
        ],
        {
            "q": seeded(2, 1, 12),
            "k": seeded(1, 2, 12).reshape(2, 1, 12),
            "v": seeded(12, 2, 1).reshape(2, 1, 12),
            "pk": seeded(2, 3, 8, 4),
            "pv": seeded(4, 3, 8, 2).reshape(2, 3, 8, 4),
            "n": np.array([used], np.int32),
        },
        {"y": F, "nk": F, "nv": F},
    )

case(
    "attention_ends",
    [node("Attention", ["x", "w", "b", "m"], ["y"], num_heads=3)],
    {"x": seeded(2, 5, 10), "m": np.array([5, 4, 0, 1], np.int32)},
    {"y": F},
    weights,
)
case(
    "attention_filter",
    [node("Attention", ["x", "w", "b", "m"], ["y"], num_heads=3, mask_filter_value=-3.0, unidirectional=1)],
    {"x": seeded(2, 5, 10), "m": np.array([[0, 0, 1, 1, 1], [1, 0, 1, 1, 1]], np.int32)},
    {"y": F},
    weights,
)
large = np.tril(np.ones((2, 1, 8, 8), np.int32))
large[1, 0, 5, 1] = 0
case(
    "attention_positions",
    [node("Attention", ["x", "w", "b", "m", "p"], ["y", "present"], num_heads=3)],
    {"x": seeded(2, 5, 10), "m": large, "p": seeded(2, 2, 3, 3, 4)},
    {"y": F, "present": F},
    {**weights, "m3": np.ascontiguousarray(large[:, 0, 3:8, :8])},
    [node("Attention", ["x", "w", "b", "m3", "p"], ["y", "present"], num_heads=3)],
)
case(
    "attention_buffer",
    [
        node(
            "Attention",
            ["x", "w", "b", "", "p", "", "n"],
            ["y", "present"],
            num_heads=3,
            unidirectional=1,
            past_present_share_buffer=1,
        )
    ],
    {"x": seeded(2, 5, 10), "p": seeded(2, 2, 3, 9, 4)},
    {"y": F, "present": F},
    {**weights, "n": np.array([2], np.int32), "from": np.array([0], np.int64), "to": np.array([2], np.int64)}
    | {"rest": np.array([7], np.int64), "end": np.array([9], np.int64), "along": np.array([3], np.int64)},
    [
        own("Slice", ["p", "from", "to", "along"], ["held"]),
        node("Attention", ["x", "w", "b", "", "held"], ["y", "all"], num_heads=3, unidirectional=1),
        own("Slice", ["p", "rest", "end", "along"], ["free"]),
        own("Concat", ["all", "free"], ["present"], axis=3),
    ],
)
# Rotations by the angles of the paper, of all elements of a head and of some. Keys in front lie in the past, as rotated.
for name, rotating, past in (("all", 32, 0), ("some", 32, 0), ("past", 32, 3)):
    size = 64 if name == "some" else 32
    angles = np.outer(np.arange(5) + past, 1.0 / 10000 ** (np.arange(rotating // 2) * 2 / rotating)).astype(np.float32)
    given = {"p": seeded(2, 2, 2, 3, size)} if past else {}
    known = {"w": seeded(10, 6 * size) / 4, "b": seeded(6 * size), "at": np.arange(5)[None].repeat(2, 0)}
    known |= {"cos": np.cos(angles), "sin": np.sin(angles), "zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    turn = {"num_heads": 2, "rotary_embedding_dim": rotating}
    about = {"num_heads": 2, "unidirectional": 1}
    parts = [own("Gather", ["p", i], [f"p{n}"], axis=0) for i, n in (("zero", "k"), ("one", "v"))] if past else []
    ends = ["pk", "pv"] if past else ["", ""]
    if past:
        parts += [own("Unsqueeze", [f"n{n}", "front"], [f"u{n}"]) for n in "kv"]
        known["front"] = np.array([0], np.int64)
    attended = node(
        "MultiHeadAttention", ["rq", "rk", "v", "", "", "", *ends], ["y"] + ["nk", "nv"] * bool(past), **about
    )
    case(
        f"attention_rotary_{name}",
        [
            node(
                "Attention",
                ["x", "w", "b"] + ["", "p"] * bool(past),
                ["y"] + ["present"] * bool(past),
                do_rotary=1,
                rotary_embedding_dim=rotating,
                **about,
            )
        ],
        {"x": seeded(2, 5, 10), **given},
        {"y": F} | ({"present": F} if past else {}),
        known,
        [
            own("MatMul", ["x", "w"], ["product"]),
            own("Add", ["product", "b"], ["sum"]),
            own("Split", ["sum"], ["q", "k", "v"], axis=2, num_outputs=3),
            node("RotaryEmbedding", ["q", "at", "cos", "sin"], ["rq"], **turn),
            node("RotaryEmbedding", ["k", "at", "cos", "sin"], ["rk"], **turn),
            *parts[:2],
            attended,
            *parts[2:],
            *([own("Concat", ["uk", "uv"], ["present"], axis=0)] if past else []),
        ],
    )

# Keys of each sample in a buffer with room, of different numbers; a prompt, and one of different lengths in a batch.
grouped = {"num_heads": 4, "kv_num_heads": 2}
for name, length, buffer, total, last, extra, attributes in (
    ("buffer", 1, 9, 6, [5, 3], {}, {"do_rotary": 1}),
    ("ragged", 1, 5, 6, [5, 3], {}, {"do_rotary": 1}),
    ("prompt", 4, 9, 4, [3, 3], {}, {"do_rotary": 1}),
    ("positions", 1, 9, 6, [5, 3], {"at": np.array([[7], [2]], np.int64)}, {"do_rotary": 1}),
    ("bias", 1, 9, 6, [5, 5], {"bias": seeded(2, 4, 1, 6)}, {}),
    ("sink", 1, 9, 6, [5, 5], {"sink": seeded(4)}, {}),
    ("smooth", 3, 0, 3, [2, 2], {}, {"smooth_softmax": 1, "softcap": 2.0}),
    ("window", 1, 9, 8, [7, 5], {}, {"local_window_size": 3}),
):
    used = tables(8) if "do_rotary" in attributes else {}
    inputs = {"q": seeded(2, length, 64), "k": seeded(length, 2, 32).reshape(2, length, 32)}
    inputs["v"] = seeded(32, 2, length).reshape(2, length, 32)
    if buffer:
        # onnxruntime leaves what lies behind the keys of a sample open.
        for n, t in (("pk", seeded(2, 2, buffer, 16)), ("pv", seeded(16, 2, buffer, 2).reshape(2, 2, buffer, 16))):
            for b, n_keys in enumerate(last):
                t[b, :, max(n_keys + 1 - length, 0) :] = 0
            inputs[n] = t
    names = ["q", "k", "v"] + (["pk", "pv"] if buffer else ["", ""]) + ["last", "total"]
    names += [n if n in used else "" for n in ("cos", "sin")] + [n if n in extra else "" for n in ("at", "bias", "sink")]
    case(
        f"gqa_{name}",
        [node("GroupQueryAttention", names, ["y", "nk", "nv"], **grouped, **attributes)],
        {**inputs, **extra},
        {"y": F, "nk": F, "nv": F},
        {**used, "last": np.array(last, np.int32), "total": np.array(total, np.int32)},
    )
for zero in (0, 1):
    packed = {"b": integers(np.uint8, 5, 2, 8), "s": np.abs(floats(10))}
    if zero:
        packed["z"] = integers(np.uint8, 5)
    case(
        f"matmul_4_bits_{zero}",
        [node("MatMulNBits", ["x"] + list(packed), ["y"], K=32, N=5, bits=4, block_size=16)],
        {"x": floats(3, 32)},
        {"y": F},
        packed,
    )

for dtype, onnx_type in (np.uint8, U8), (np.int8, I8):
    scales = {"as": np.float32(0.03), "az": dtype(3), "bs": np.float32(0.05), "bz": dtype(-7 % 128)}
    scales |= {"ys": np.float32(0.1), "yz": dtype(5)}
    scales = {n: np.asarray(a) for n, a in scales.items()}
    pair = {"a": integers(dtype, 3, 9), "b": integers(dtype, 3, 9)}
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    for op in ("QLinearAdd", "QLinearMul"):
        case(f"{op.lower()}_{dtype.__name__}", [node(op, names, ["y"])], pair, {"y": onnx_type}, scales)
    alone = ["a", "as", "az", "ys", "yz"]
    constants = {n: scales[n] for n in alone[1:]}
    case(
        f"qlinearsigmoid_{dtype.__name__}",
        [node("QLinearSigmoid", alone, ["y"])],
        {"a": pair["a"]},
        {"y": onnx_type},
        constants,
    )

# Products and convolutions between DequantizeLinear and QuantizeLinear.
for per_channel in (0, 1):
    count = 6 if per_channel else 1
    shape = (6,) if per_channel else ()
    quantised = {
        "xs": np.float32(0.02),
        "xz": np.uint8(117),
        "ws": (np.abs(RNG.standard_normal(count)) * 0.01 + 0.005).astype(np.float32).reshape(shape),
        "wz": np.zeros(shape, np.int8),
        "ys": np.float32(0.11),
        "yz": np.uint8(101),
        "b": floats(6),
    }
    quantised = {n: np.asarray(a) for n, a in quantised.items()}
    for kind, weight, x in (
        ("matmul", integers(np.int8, 20, 6, low=-127), floats(4, 20)),
        ("conv", integers(np.int8, 6, 3, 3, 3, low=-127), floats(2, 3, 9, 8)),
    ):
        axis = 1 if kind == "matmul" else 0
        q = lambda op, *a, **k: helper.make_node(op, *a, **k)
        product = (
            [q("MatMul", ["x2", "w2"], ["p"]), q("Add", ["p", "b"], ["y1"])]
            if kind == "matmul"
            else [q("Conv", ["x2", "w2", "b"], ["y1"], pads=[1, 0, 1, 2], strides=[2, 1])]
        )
        nodes = [
            q("QuantizeLinear", ["x", "xs", "xz"], ["x1"]),
            q("DequantizeLinear", ["x1", "xs", "xz"], ["x2"]),
            q("DequantizeLinear", ["w", "ws", "wz"], ["w2"], axis=axis),
            *product,
            q("QuantizeLinear", ["y1", "ys", "yz"], ["y2"]),
            q("DequantizeLinear", ["y2", "ys", "yz"], ["y"]),
        ]
        case(f"qdq_{kind}_{per_channel}", nodes, {"x": x}, {"y": F}, {**quantised, "w": weight})

# Loops of many turns: counted, ended by a condition, with rows, and with a number of turns that is an input.
BOOL = TensorProto.BOOL


def loop_body(condition, rows):
    """x = cos(x) + turn / 10000, while |x - 0.7| > 1e-4 if there is a condition."""
    value = helper.make_tensor_value_info
    number = lambda a, n: numpy_helper.from_array(np.asarray(a), n)
    n = lambda op, *a, **k: helper.make_node(op, *a, **k)
    nodes = [
        n("Cast", ["turn"], ["t"], to=F),
        n("Mul", ["t", "small"], ["drift"]),
        n("Cos", ["x"], ["cosine"]),
        n("Add", ["cosine", "drift"], ["next"]),
    ]
    if condition:
        nodes += [
            n("Sub", ["next", "goal"], ["error"]),
            n("Abs", ["error"], ["distance"]),
            n("ReduceMax", ["distance"], ["far"], keepdims=0),
            n("Greater", ["far", "near"], ["more"]),
        ]
    else:
        nodes.append(n("Identity", ["going"], ["more"]))
    outputs = [value("more", BOOL, []), value("next", F, [3])]
    if rows:
        nodes.append(n("Mul", ["next", "next"], ["row"]))
        outputs.append(value("row", F, [3]))
    initial = [number(np.float32(v), k) for k, v in (("small", 1e-5), ("goal", 0.75), ("near", 1e-2))]
    inputs = [value("turn", I64, []), value("going", BOOL, []), value("x", F, [3])]
    return helper.make_graph(nodes, "body", inputs, outputs, initial)


for name, condition, rows, trips in (
    ("counted", 0, 0, 10000),
    ("counted_rows", 0, 1, 300),
    ("ended", 1, 0, np.iinfo(np.int64).max),
    ("ended_bounded", 1, 0, 9),
    ("ended_rows", 1, 1, 10000),
    ("trips_given", 0, 0, None),
    ("trips_given_rows", 1, 1, None),
):
    given = {"x0": floats(3)}
    if trips is None:
        given["trips"] = np.array(20, np.int64)
    case(
        f"loop_{name}",
        [helper.make_node("Loop", ["trips", "", "x0"], ["y"] + ["rows"] * rows, body=loop_body(condition, rows))],
        given,
        {"y": F} | ({"rows": F} if rows else {}),
        {} if trips is None else {"trips": np.array(trips, np.int64)},
    )

# Machine learning.
S = TensorProto.STRING
rows = {"x": floats(5, 3)}
case(
    "linear_regressor",
    [node("LinearRegressor", ["x"], ["y"], ML, coefficients=[0.5, -1.0, 2.0, 0.1, 0.2, 0.3], intercepts=[1.0, -2.0], targets=2)],
    rows,
    {"y": F},
)
for norm in ("MAX", "L1", "L2"):
    case(f"normalizer_{norm.lower()}", [node("Normalizer", ["x"], ["y"], ML, norm=norm)], {"x": np.abs(floats(5, 3))}, {"y": F})
case("scaler", [node("Scaler", ["x"], ["y"], ML, offset=[0.1, 0.2, 0.3], scale=[2.0, 3.0, 4.0])], rows, {"y": F})
for how in ("SUM", "AVERAGE", "MIN", "MAX"):
    # Two trees: a root with two leaves, and a root with a leaf and a second comparison. Each row reaches both targets:
    # without a leaf, onnxruntime gives 0 in place of the base value.
    case(
        f"tree_regressor_{how.lower()}",
        [
            node(
                "TreeEnsembleRegressor",
                ["x"],
                ["y"],
                ML,
                nodes_treeids=[0, 0, 0, 1, 1, 1, 1, 1],
                nodes_nodeids=[0, 1, 2, 0, 1, 2, 3, 4],
                nodes_featureids=[0, 0, 0, 1, 0, 2, 0, 0],
                nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
                nodes_values=[0.1, 0.0, 0.0, -0.2, 0.0, 0.3, 0.0, 0.0],
                nodes_truenodeids=[1, 0, 0, 1, 0, 3, 0, 0],
                nodes_falsenodeids=[2, 0, 0, 2, 0, 4, 0, 0],
                nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 1, 0, 0],
                target_treeids=[0, 0, 0, 0, 1, 1, 1],
                target_nodeids=[1, 1, 2, 2, 1, 3, 4],
                target_ids=[0, 1, 0, 1, 1, 0, 0],
                target_weights=[1.0, 7.0, 2.0, -3.0, 4.0, -5.0, 6.0],
                n_targets=2,
                aggregate_function=how,
                base_values=[0.5, -0.5],
            )
        ],
        {"x": np.concatenate([floats(6, 3), np.full((1, 3), np.nan, np.float32)])},
        {"y": F},
    )
case(
    "label_encoder_floats",
    [node("LabelEncoder", ["x"], ["y"], ML, keys_floats=[0.0, 1.5, 4.0], values_strings=["zero", "more", "many"], default_string="?")],
    {"x": np.array([[1.5, -0.0], [np.nan, 2.0]], np.float32)},
    {"y": S},
)

# Maps.
for name, keys, attributes in (
    ("texts", ["b", "x", "a"], {"string_vocabulary": ["a", "b", "c"]}),
    ("integers", [7, -2, 4], {"int64_vocabulary": [-2, 3, 7, 9]}),
):
    case(f"map_{name}", [node("DictVectorizer", ["x"], ["y"], ML, **attributes)], {"x": dict(zip(keys, [1.5, -2.0, 3.0]))}, {"y": F})
for name, attributes in ("dense", {}), ("sparse", {"map_form": "SPARSE", "max_map": 9}):
    for to, of in ("FLOAT", F), ("INT64", I64):
        case(
            f"map_{name}_{to.lower()}",
            [node("CastMap", ["x"], ["y"], ML, cast_to=f"TO_{to}", **attributes)],
            {"x": {7: 1.5, 2: -2.0, 4: 3.0}},
            {"y": of},
        )

# Text.
words = {"x": np.array([["a", "bc", "d e"], ["", "é", "bc"]], object)}
text = lambda op, *a, **k: helper.make_node(op, *a, **k)
case("text_gather", [text("Gather", ["x", "i"], ["y"], axis=1)], words | {"i": np.array([2, 0], np.int64)}, {"y": S})
case(
    "text_moved",
    [
        text("Concat", ["x", "x"], ["c"], axis=0),
        text("Transpose", ["c"], ["t"], perm=[1, 0]),
        text("Reshape", ["t", "shape"], ["r"]),
        text("Slice", ["r", "from", "to"], ["y"]),
        text("Equal", ["y", "one"], ["same"]),
    ],
    words,
    {"y": S, "same": TensorProto.BOOL},
    {
        "shape": np.array([2, -1], np.int64),
        "from": np.array([0, 1], np.int64),
        "to": np.array([2, 5], np.int64),
        "one": np.array(["bc"], object),
    },
)
case("text_numbers", [text("Cast", ["x"], ["y"], to=F)], {"x": np.array(["1.5", "-3", "1e3"], object)}, {"y": F})
for mode in ("TF", "IDF", "TFIDF"):
    case(
        f"tfidf_{mode.lower()}",
        [
            text(
                "TfIdfVectorizer",
                ["x"],
                ["y"],
                mode=mode,
                min_gram_length=1,
                max_gram_length=2,
                max_skip_count=1,
                pool_strings=["a", "b", "c", "a", "b", "b", "a"],
                ngram_counts=[0, 3],
                ngram_indexes=[0, 1, 2, 3, 4],
                weights=[0.5, 1.5, 2.5, 3.5, 4.5],
            )
        ],
        {"x": np.array([["a", "b", "a", "c", "b"], ["b", "b", "a", "x", "a"]], object)},
        {"y": F},
    )
