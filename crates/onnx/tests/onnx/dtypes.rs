//! Every operator on every dtype, exported with every version.

use crate::peers::Cases;
use kiln_onnx::Export;

use kiln_tensor::{
    Attention, Compiled, DType, PadMode, Scan, ScatterReduction, Spec, Tensor, cat, compile, cond,
    keep, scan_with,
};
use kiln_testkit::sweep::Sweep;

type Operation = (&'static str, fn(&Tensor) -> Tensor);

/// Operations on images `[1, 2, 4, 4]`.
const OPERATIONS: &[Operation] = &[
    ("neg", |x| -x),
    ("abs", |x| x.abs()),
    ("sign", |x| x.sign()),
    ("add", |x| x + x),
    ("sub", |x| x - 1),
    ("mul", |x| x * x),
    ("div", |x| x / x.flip(3)),
    ("pow", |x| x.pow(x)),
    ("remainder", |x| x.remainder(x)),
    ("fmod", |x| x.fmod(x)),
    ("maximum", |x| x.maximum(x)),
    ("minimum", |x| x.minimum(x)),
    ("eq", |x| x.eq(x)),
    ("ne", |x| x.ne(x)),
    ("lt", |x| x.lt(x)),
    ("ge", |x| x.ge(x)),
    ("and", |x| x.bitwise_and(x)),
    ("xor", |x| x.bitwise_xor(x)),
    ("not", |x| x.bitwise_not()),
    ("shift", |x| x.bitwise_left_shift(x)),
    ("logical", |x| x.logical_and(x.logical_not())),
    ("relu", |x| x.relu()),
    ("gelu", |x| x.gelu()),
    ("silu", |x| x.silu()),
    ("mish", |x| x.mish()),
    ("elu", |x| x.elu()),
    ("selu", |x| x.selu()),
    ("softplus", |x| x.softplus()),
    ("softsign", |x| x.softsign()),
    ("hardsigmoid", |x| x.hardsigmoid()),
    ("hardswish", |x| x.hardswish()),
    ("sqrt", |x| x.sqrt()),
    ("exp", |x| x.exp()),
    ("log1p", |x| x.log1p()),
    ("circle", |x| {
        x.sin() + x.cos() + x.tan() + x.asin() + x.acos() + x.atan()
    }),
    ("hyperbola", |x| {
        x.sinh() + x.cosh() + x.tanh() + x.asinh() + x.acosh() + x.atanh()
    }),
    ("erf", |x| x.erf()),
    ("round", |x| x.round() + x.floor() + x.ceil() + x.trunc()),
    ("isnan", |x| x.isnan()),
    ("isinf", |x| x.isinf()),
    ("clamp", |x| x.clamp(0, 1)),
    ("where", |x| x.where_cond(x.eq(x), x.flip(3))),
    ("cast", |x| x.to_dtype(DType::F32)),
    ("cast_to_i16", |x| x.to_dtype(DType::I16)),
    ("reshape", |x| x.reshape([2, 16])),
    ("permute", |x| x.permute([0, 3, 1, 2])),
    ("flip", |x| x.flip(2)),
    ("narrow", |x| x.narrow(2, 1, 2)),
    ("pad", |x| x.pad([1, 2], PadMode::Constant(0.into()))),
    ("cat", |x| cat([x, x], 1)),
    ("expand", |x| {
        x.select(3, 0).unsqueeze(3).expand([1, 2, 4, 5])
    }),
    ("sum", |x| x.sum(2)),
    ("prod", |x| x.prod(2)),
    ("amax", |x| x.amax(keep(2))),
    ("amin", |x| x.amin(2)),
    ("argmax", |x| x.argmax(1)),
    ("cumsum", |x| x.cumsum(3)),
    ("cumprod", |x| x.cumprod(3)),
    ("sort", |x| x.sort(3).0),
    ("topk", |x| x.topk(2).0),
    ("gather", |x| {
        x.gather(3, Tensor::zeros([1, 2, 4, 2], DType::I64))
    }),
    ("index_select", |x| {
        x.index_select(1, Tensor::from([1i64, 0, 1]))
    }),
    ("scatter", |x| {
        x.scatter(3, Tensor::ones([1, 2, 4, 1], DType::I64), x)
    }),
    ("scatter_add", |x| {
        x.scatter_add(3, Tensor::ones([1, 2, 4, 1], DType::I64), x)
    }),
    ("scatter_amax", |x| {
        x.scatter_reduce(
            3,
            Tensor::ones([1, 2, 4, 1], DType::I64),
            x,
            ScatterReduction::Amax,
        )
    }),
    ("matmul", |x| x.matmul(x)),
    ("conv2d", |x| x.conv2d(x.narrow(2, 0, 2))),
    ("conv_transpose2d", |x| {
        x.conv_transpose2d(x.narrow(2, 0, 2).permute([1, 0, 2, 3]))
    }),
    ("max_pool2d", |x| x.max_pool2d(2)),
    ("avg_pool2d", |x| x.avg_pool2d(2)),
    ("attention", |x| x.scaled_dot_product_attention(x, x)),
    ("masked_attention", |x| {
        // A query without keys, and one of some.
        let mask = Tensor::arange(0, 4, 1)
            .unsqueeze(1)
            .gt(Tensor::arange(0, 4, 1));
        let how = Attention::new().attn_mask(Some(mask));
        x.scaled_dot_product_attention_with(x, x, how)
    }),
    ("softmax", |x| x.softmax(1)),
    ("log_softmax", |x| x.log_softmax(3)),
    ("layer_norm", |x| x.layer_norm([4])),
    ("rms_norm", |x| x.rms_norm([4])),
    ("group_norm", |x| x.group_norm(2)),
    ("batch_norm", |x| x.batch_norm()),
    ("branch", |x| {
        cond(x.eq(x).all(()), || x.clone(), || x.flip(1))
    }),
    ("loop", |x| {
        scan_with(
            x.select(0, 0),
            x,
            Scan::new(),
            |state: Tensor, row: Tensor| (row, state),
        )
        .1
    }),
];

/// All models pass the standard's checker: a dtype that an operator of a version lacks is written as a wider one. One
/// version of each operation and dtype, or all of them with `KILN_FULL_SWEEP=1`.
#[test]
fn every_dtype_in_every_version() {
    let cases = Cases::new("dtypes", [2e-2, 1e-3]);
    let (mut exported, mut lacking) = (0, Vec::new());
    let all = Sweep::wanted().is_some();
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let spec = Spec::new(dtype, [1, 2, 4, 4]);
        let numbers = Tensor::arange(0, 32, 1).remainder(3) + 1;
        let numbers = numbers.reshape([1, 2, 4, 4]).to_dtype(DType::F32);
        let mut x = numbers.to_dtype(dtype).realize().unwrap().clone();
        if dtype.is_float() && dtype.size() == 1 {
            // Infinities and NaN among them.
            let special = [0x7c, 0xfc, 0x7f, 0xff, 0x80];
            let bytes: Vec<u8> = special.into_iter().chain((0..27).map(|i| 9 * i)).collect();
            x = Tensor::from_bytes(&bytes, dtype, [1, 2, 4, 4]);
        }
        for (j, (name, operation)) in OPERATIONS.iter().enumerate() {
            let Ok(f): Result<Compiled<Tensor, Tensor>, _> =
                compile(spec.clone(), |x: Tensor| operation(&x))
            else {
                continue;
            };
            for opset in 17..=28 {
                if !all && opset as usize != 17 + (5 * i + 7 * j) % 12 {
                    continue;
                }
                let how = Export::new().opset(opset);
                match cases.add(&format!("{name}-{dtype}-{opset}"), &f, &[&[x.clone()]], how) {
                    Ok(_) => exported += 1,
                    Err(e) => lacking.push(format!("{name} of {dtype}: {e}")),
                }
            }
        }
    }
    println!("{exported} exported; refused:\n{}", lacking.join("\n"));
    cases.beside_onnxruntime();
}
