//! The compared workloads: single operations, networks and training steps.

use kiln::nn::{BatchNorm2d, Forward, LayerNorm, Linear, Module, Sequential};
use kiln::{CompileOptions, DType, Result, Tensor, compile, no_grad};
use kiln_models::workloads::{self, Setup, Workload};

/// The operations but attention: names and descriptions.
const OPERATIONS: [(&str, &str); 8] = [
    ("softmax", "softmax of rows, 4096x4096"),
    ("layer-norm", "layer norm, 8192x1024"),
    (
        "batch-norm-relu",
        "batch norm in training and ReLU, 32x64x56x56",
    ),
    (
        "gelu-chain",
        "gelu(x * a + b) * c, four arrays of 4096x4096",
    ),
    ("matmul", "matrix product, 1024x1024x1024"),
    ("linear", "linear layer, 256 rows, 768 to 3072 features"),
    ("bmm", "64 matrix products, 64x64x64"),
    ("matvec", "matrix times vector, 4096x4096"),
];

/// The suffixes of attention, with descriptions.
const ATTENTION: [(&str, &str); 4] = [
    ("", "attention"),
    ("-step", "attention and its gradients"),
    ("-bf16", "attention of bf16"),
    ("-step-bf16", "attention of bf16 and its gradients"),
];

const BF16_SUFFIX: &str = "-bf16";
/// The networks that are also run with weights and inputs of bf16.
const BF16_NETWORKS: [&str; 6] = [
    "resnet50",
    "resnet50-8",
    "mobilenet",
    "unet",
    "encoder",
    "decoder-cached",
];

/// Every workload: its name and its description.
pub fn names() -> impl Iterator<Item = (String, String)> {
    let attention = ATTENTION.into_iter().flat_map(|(suffix, about)| {
        [256, 1024, 4096].map(|keys| {
            let about = format!("{about}, 12 heads of 64, {keys} keys");
            (format!("attention-{keys}{suffix}"), about)
        })
    });
    let halves = workloads::names().filter(|(name, _)| BF16_NETWORKS.contains(name));
    let halves =
        halves.map(|(name, about)| (format!("{name}{BF16_SUFFIX}"), format!("{about}, bf16")));
    let others = OPERATIONS.into_iter().chain(workloads::names());
    let others = others.map(|(name, about)| (name.to_string(), about.to_string()));
    others.chain(attention).chain(halves)
}

/// Makes a workload with random weights.
///
/// # Errors
/// If there is none of that name.
pub fn workload(name: &str) -> Result<Workload> {
    let random = |shape: &[usize]| Tensor::randn(shape, DType::F32);
    let large = || random(&[4096, 4096]);
    let none = Sequential::new;
    if let Some(made) = name.strip_prefix("attention-").and_then(attention) {
        return made;
    }
    match name {
        "softmax" => operation(none(), vec![large()], |_, x| x[0].softmax(1)),
        "layer-norm" => operation(
            LayerNorm::new([1024])?,
            vec![random(&[8192, 1024])],
            |m, x| m.call(&x[0]),
        ),
        "batch-norm-relu" => {
            let x = random(&[32, 64, 56, 56]);
            operation(BatchNorm2d::new(64)?, vec![x], |m, x| m.call(&x[0]).relu())
        }
        "gelu-chain" => {
            let x = (0..4).map(|_| large()).collect();
            operation(none(), x, |_, x| (&x[0] * &x[1] + &x[2]).gelu() * &x[3])
        }
        "matmul" => {
            let x = [0, 1].map(|_| random(&[1024, 1024])).to_vec();
            operation(none(), x, |_, x| x[0].matmul(&x[1]))
        }
        "linear" => operation(
            Linear::new(768, 3072)?,
            vec![random(&[256, 768])],
            |m, x| m.call(&x[0]),
        ),
        "bmm" => {
            let x = [0, 1].map(|_| random(&[64, 64, 64])).to_vec();
            operation(none(), x, |_, x| x[0].matmul(&x[1]))
        }
        "matvec" => operation(none(), vec![large(), random(&[4096])], |_, x| {
            x[0].matmul(&x[1])
        }),
        _ => {
            let options = CompileOptions::default();
            let mut setup = Setup::from(&options);
            let of_f32 = name.strip_suffix(BF16_SUFFIX);
            let of_f32 = of_f32.filter(|name| BF16_NETWORKS.contains(name));
            if of_f32.is_some() {
                setup.dtype = DType::BF16;
            }
            workloads::make(of_f32.unwrap_or(name), setup)
        }
    }
}

/// Attention of 12 heads of 64 over the given number of keys; with the suffix `-step` also its gradients, with
/// `-bf16` in that dtype.
fn attention(what: &str) -> Option<Result<Workload>> {
    let of_halves = what.strip_suffix(BF16_SUFFIX);
    let dtype = if of_halves.is_some() {
        DType::BF16
    } else {
        DType::F32
    };
    let what = of_halves.unwrap_or(what);
    let of_step = what.strip_suffix("-step");
    let keys: usize = of_step.unwrap_or(what).parse().ok()?;
    let heads = [0; 3].map(|_| Tensor::randn([1, 12, keys, 64], DType::F32).to_dtype(dtype));
    let attend = |x: &[Tensor]| x[0].scaled_dot_product_attention(&x[1], &x[2]);
    Some(match of_step.is_some() {
        true => gradients(heads.to_vec(), attend),
        false => operation(Sequential::new(), heads.to_vec(), move |_, x| attend(x)),
    })
}

/// The mean square of a function, and the gradients of its inputs.
fn gradients(inputs: Vec<Tensor>, f: impl FnOnce(&[Tensor]) -> Tensor) -> Result<Workload> {
    let program = compile(&inputs, |x| -> Result<Vec<Tensor>> {
        let leaves: Vec<Tensor> = x.iter().map(|x| x.detach().requires_grad_(true)).collect();
        let loss = f(&leaves).square().mean(());
        loss.backward()?;
        let gradients = leaves.iter().filter_map(Tensor::grad);
        Ok(std::iter::once(loss.clone()).chain(gradients).collect())
    })?;
    Ok(Workload {
        model: Box::new(Sequential::new()),
        inputs,
        program,
    })
}

fn operation<M: Module + 'static>(
    model: M,
    inputs: Vec<Tensor>,
    f: impl FnOnce(&M, &[Tensor]) -> Tensor,
) -> Result<Workload> {
    let program = compile(&inputs, |x| no_grad(|| vec![f(&model, &x)]))?;
    Ok(Workload {
        model: Box::new(model),
        inputs,
        program,
    })
}
