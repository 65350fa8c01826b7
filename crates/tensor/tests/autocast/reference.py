"""What PyTorch's autocast makes of the dtypes of operators: writes `reference.json` beside this file.

Run with PyTorch 2.x. No GPU is needed: the CUDA list is asked with fake tensors, which have dtypes alone.
"""

import json
import logging
import pathlib
import warnings

import torch
import torch.nn.functional as F
from torch import linalg
from torch._subclasses.fake_tensor import FakeTensorMode

M, V, B, C = (4, 4), (4,), (2, 4, 4), (2, 4, 6, 6)


def longs(d, *values):
    return torch.tensor(values, dtype=torch.long, device=d)


def zeros(d, *shape):
    return torch.zeros(*shape, dtype=torch.long, device=d)


def ctc(d, x):
    return F.ctc_loss(x, zeros(d, 2, 3) + 1, longs(d, 6, 6), longs(d, 3, 3))


FUNCTIONS = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "sqrt sin cos tanh sigmoid erf relu abs floor"
)

# Name: the shapes of the float operands, and the call, which gets the device too.
OPS = {
    # Products.
    "conv1d": ([(2, 3, 8), (4, 3, 3), V], lambda d, *x: F.conv1d(*x)),
    "conv2d": ([(2, 3, 8, 8), (4, 3, 3, 3), V], lambda d, *x: F.conv2d(*x)),
    "conv3d": ([(2, 3, 4, 4, 4), (4, 3, 2, 2, 2), V], lambda d, *x: F.conv3d(*x)),
    "conv_transpose1d": ([(2, 3, 8), (3, 4, 3), V], lambda d, *x: F.conv_transpose1d(*x)),
    "conv_transpose2d": ([(2, 3, 4, 4), (3, 4, 3, 3), V], lambda d, *x: F.conv_transpose2d(*x)),
    "conv_transpose3d": ([(2, 3, 4, 4, 4), (3, 4, 2, 2, 2), V], lambda d, *x: F.conv_transpose3d(*x)),
    "prelu": ([M, (1,)], lambda d, *x: F.prelu(*x)),
    "addmm": ([M, M, M], lambda d, *x: torch.addmm(*x)),
    "addmv": ([V, M, V], lambda d, *x: torch.addmv(*x)),
    "addr": ([M, V, V], lambda d, *x: torch.addr(*x)),
    "matmul": ([B, M], lambda d, *x: torch.matmul(*x)),
    "einsum": ([M, M], lambda d, *x: torch.einsum("ij,jk->ik", *x)),
    "mm": ([M, M], lambda d, *x: torch.mm(*x)),
    "mv": ([M, V], lambda d, *x: torch.mv(*x)),
    "vecdot": ([M, M], lambda d, *x: linalg.vecdot(*x)),
    "linear": ([M, M, V], lambda d, *x: F.linear(*x)),
    "addbmm": ([M, B, B], lambda d, *x: torch.addbmm(*x)),
    "baddbmm": ([B, B, B], lambda d, *x: torch.baddbmm(*x)),
    "bmm": ([B, B], lambda d, *x: torch.bmm(*x)),
    "multi_dot": ([M, M, M], lambda d, *x: linalg.multi_dot(x)),
    "scaled_dot_product_attention": ([C, C, C], lambda d, *x: F.scaled_dot_product_attention(*x)),
    # Functions of numbers.
    **{n: ([V], lambda d, x, n=n: getattr(torch, n)(x)) for n in FUNCTIONS.split()},
    "gelu": ([V], lambda d, x: F.gelu(x)),
    "silu": ([V], lambda d, x: F.silu(x)),
    "softplus": ([V], lambda d, x: F.softplus(x)),
    "pow": ([V, V], lambda d, *x: torch.pow(*x)),
    "add": ([V, V], lambda d, *x: torch.add(*x)),
    "mul": ([V, V], lambda d, *x: torch.mul(*x)),
    "div": ([V, V], lambda d, *x: torch.div(*x)),
    "addcdiv": ([V, V, V], lambda d, *x: torch.addcdiv(*x)),
    "addcmul": ([V, V, V], lambda d, *x: torch.addcmul(*x)),
    "atan2": ([V, V], lambda d, *x: torch.atan2(*x)),
    # Norms and reductions.
    "layer_norm": ([M, V, V], lambda d, x, w, b: F.layer_norm(x, (4,), w, b)),
    "rms_norm": ([M, V], lambda d, x, w: F.rms_norm(x, (4,), w)),
    "group_norm": ([C, V, V], lambda d, x, w, b: F.group_norm(x, 2, w, b)),
    "batch_norm": ([C, V, V], lambda d, x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
    "renorm": ([M], lambda d, x: torch.renorm(x, 2, 0, 1.0)),
    "logsumexp": ([M], lambda d, x: torch.logsumexp(x, 1)),
    "prod": ([M], lambda d, x: torch.prod(x, 1)),
    "softmax": ([M], lambda d, x: torch.softmax(x, 1)),
    "log_softmax": ([M], lambda d, x: torch.log_softmax(x, 1)),
    "cumprod": ([M], lambda d, x: torch.cumprod(x, 1)),
    "cumsum": ([M], lambda d, x: torch.cumsum(x, 1)),
    "vector_norm": ([M], lambda d, x: linalg.vector_norm(x)),
    "matrix_norm": ([M], lambda d, x: linalg.matrix_norm(x)),
    "sum": ([M], lambda d, x: torch.sum(x, 1)),
    "mean": ([M], lambda d, x: torch.mean(x, 1)),
    "amax": ([M], lambda d, x: torch.amax(x, 1)),
    "var": ([M], lambda d, x: torch.var(x, 1)),
    "quantile": ([M], lambda d, x: torch.quantile(x, 0.5, 1)),
    "nanquantile": ([M], lambda d, x: torch.nanquantile(x, 0.5, 1)),
    "trace": ([M], lambda d, x: torch.trace(x)),
    # Losses and distances.
    "cosine_similarity": ([M, M], lambda d, *x: F.cosine_similarity(*x)),
    "poisson_nll_loss": ([M, M], lambda d, *x: F.poisson_nll_loss(*x)),
    "gaussian_nll_loss": ([M, M, M], lambda d, *x: F.gaussian_nll_loss(*x)),
    "cosine_embedding_loss": ([M, M, V], lambda d, *x: F.cosine_embedding_loss(*x)),
    "nll_loss": ([M], lambda d, x: F.nll_loss(x, longs(d, 0, 1, 2, 3))),
    "cross_entropy": ([M], lambda d, x: F.cross_entropy(x, longs(d, 0, 1, 2, 3))),
    "hinge_embedding_loss": ([M, M], lambda d, *x: F.hinge_embedding_loss(*x)),
    "kl_div": ([M, M], lambda d, *x: F.kl_div(*x, reduction="sum")),
    "l1_loss": ([M, M], lambda d, *x: F.l1_loss(*x)),
    "smooth_l1_loss": ([M, M], lambda d, *x: F.smooth_l1_loss(*x)),
    "huber_loss": ([M, M], lambda d, *x: F.huber_loss(*x)),
    "mse_loss": ([M, M], lambda d, *x: F.mse_loss(*x)),
    "margin_ranking_loss": ([V, V, V], lambda d, *x: F.margin_ranking_loss(*x)),
    "multilabel_margin_loss": ([M], lambda d, x: F.multilabel_margin_loss(x, zeros(d, 4, 4))),
    "multilabel_soft_margin_loss": ([M, M], lambda d, *x: F.multilabel_soft_margin_loss(*x)),
    "soft_margin_loss": ([M, M], lambda d, *x: F.soft_margin_loss(*x)),
    "triplet_margin_loss": ([M, M, M], lambda d, *x: F.triplet_margin_loss(*x)),
    "multi_margin_loss": ([M], lambda d, x: F.multi_margin_loss(x, longs(d, 0, 1, 2, 3))),
    "binary_cross_entropy": ([M, M], lambda d, *x: F.binary_cross_entropy(*x)),
    "binary_cross_entropy_with_logits": ([M, M], lambda d, *x: F.binary_cross_entropy_with_logits(*x)),
    "ctc_loss": ([(6, 2, 4)], ctc),
    "dist": ([V, V], lambda d, *x: torch.dist(*x)),
    "pdist": ([M], lambda d, x: F.pdist(x)),
    "cdist": ([M, M], lambda d, *x: torch.cdist(*x)),
    # Images.
    "interpolate": ([C], lambda d, x: F.interpolate(x, size=(9, 9), mode="nearest")),
    "interpolate_bilinear": ([C], lambda d, x: F.interpolate(x, size=(9, 9), mode="bilinear")),
    "grid_sample": ([C, (2, 3, 3, 2)], lambda d, x, g: F.grid_sample(x, g, align_corners=False)),
    "avg_pool2d": ([C], lambda d, x: F.avg_pool2d(x, 2)),
    "avg_pool3d": ([C], lambda d, x: F.avg_pool3d(x, 2)),
    "max_pool2d": ([C], lambda d, x: F.max_pool2d(x, 2)),
    "max_pool3d": ([C], lambda d, x: F.max_pool3d(x, 2)),
    "adaptive_avg_pool2d": ([C], lambda d, x: F.adaptive_avg_pool2d(x, 2)),
    "adaptive_avg_pool3d": ([C], lambda d, x: F.adaptive_avg_pool3d(x, 2)),
    "adaptive_max_pool3d": ([C], lambda d, x: F.adaptive_max_pool3d(x, 2)),
    "fractional_max_pool2d": ([C], lambda d, x: F.fractional_max_pool2d(x, 2, 3)),
    "fractional_max_pool3d": ([C], lambda d, x: F.fractional_max_pool3d(x, 2, (2, 3, 3))),
    "max_unpool2d": ([(2, 4, 2, 2)], lambda d, x: F.max_unpool2d(x, zeros(d, 2, 4, 2, 2), 2)),
    "max_unpool3d": ([(2, 2, 2, 2)], lambda d, x: F.max_unpool3d(x, zeros(d, 2, 2, 2, 2), 2)),
    "reflection_pad1d": ([B], lambda d, x: F.pad(x, (1, 1), "reflect")),
    "reflection_pad2d": ([C], lambda d, x: F.pad(x, (1, 1, 1, 1), "reflect")),
    "reflection_pad3d": ([(2, 3, 4, 4, 4)], lambda d, x: F.pad(x, (1,) * 6, "reflect")),
    "replication_pad1d": ([B], lambda d, x: F.pad(x, (1, 1), "replicate")),
    "replication_pad2d": ([C], lambda d, x: F.pad(x, (1, 1, 1, 1), "replicate")),
    "replication_pad3d": ([(2, 3, 4, 4, 4)], lambda d, x: F.pad(x, (1,) * 6, "replicate")),
    "pad_circular2d": ([C], lambda d, x: F.pad(x, (1, 1, 1, 1), "circular")),
    "pad_constant": ([C], lambda d, x: F.pad(x, (1, 1))),
    # What joins operands of several dtypes.
    "bilinear": ([M, M, (3, 4, 4), (3,)], lambda d, *x: F.bilinear(*x)),
    "cross": ([(4, 3), (4, 3)], lambda d, *x: torch.cross(*x, dim=1)),
    "dot": ([V, V], lambda d, *x: torch.dot(*x)),
    "index_put": ([V, (1,)], lambda d, x, y: torch.index_put(x, (longs(d, 1),), y)),
    "index_copy": ([M, (1, 4)], lambda d, x, y: torch.index_copy(x, 0, longs(d, 1), y)),
    "tensordot": ([M, M], lambda d, *x: torch.tensordot(*x, 1)),
    "scatter_add": ([M, M], lambda d, x, y: torch.scatter_add(x, 0, zeros(d, 4, 4), y)),
    "cat": ([M, M], lambda d, *x: torch.cat(x)),
    "stack": ([M, M], lambda d, *x: torch.stack(x)),
    # Linear algebra.
    "inv": ([M], lambda d, x: linalg.inv(x)),
    "cholesky": ([M], lambda d, x: linalg.cholesky(torch.eye(4, device=d, dtype=x.dtype) + x * 0)),
    "qr": ([M], lambda d, x: linalg.qr(x)[0]),
    "svd": ([M], lambda d, x: linalg.svd(x)[0]),
    "cholesky_inverse": ([M], lambda d, x: torch.cholesky_inverse(x)),
    "cholesky_solve": ([M, M], lambda d, *x: torch.cholesky_solve(*x)),
    "lstsq": ([M, M], lambda d, *x: linalg.lstsq(*x)[0]),
    "eigh": ([M], lambda d, x: linalg.eigh(x)[0]),
    "cond": ([M], lambda d, x: linalg.cond(x, 1)),
    "svdvals": ([M], lambda d, x: linalg.svdvals(x)),
    "eigvalsh": ([M], lambda d, x: linalg.eigvalsh(x)),
    "solve": ([M, M], lambda d, *x: linalg.solve(*x)),
}

NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


def found(op, shapes, device, dtypes):
    torch.manual_seed(0)
    x = [(torch.rand(s, device=device) * 0.5 + 0.3).to(t) for s, t in zip(shapes, dtypes)]
    try:
        return NAMES[op(device, *x).dtype]
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return "error"


def cases(count, low):
    """Dtypes of the operands: all f32, the lower one, the other lower one, f64; the first f32, or alone lower."""
    other = torch.float16 if low is torch.bfloat16 else torch.bfloat16
    yield from ([t] * count for t in (torch.float32, low, other, torch.float64))
    if count > 1:
        yield [torch.float32] + [low] * (count - 1)
        yield [low] + [torch.float32] * (count - 1)


def table(device):
    rows = {}
    for name, (shapes, op) in OPS.items():
        rows[name] = {}
        for low in (torch.bfloat16, torch.float16):
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, low)
            rows[name][NAMES[low]] = [found(op, shapes, device, c) for c in cases(len(shapes), low)]
            torch.set_autocast_enabled(device, False)
    return rows


def main():
    warnings.simplefilter("ignore")
    logging.disable()
    tables = {"cpu": table("cpu")}
    with FakeTensorMode():
        tables["cuda"] = table("cuda")
    lines = []
    for device, rows in tables.items():
        body = ",\n".join(f"  {json.dumps(n)}: {json.dumps(r)}" for n, r in rows.items())
        lines.append(f"{json.dumps(device)}: {{\n{body}\n}}")
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text("{" + ",\n".join(lines) + "}\n")


main()
