//! The compared workloads: single operations, networks and training steps.

use kiln::nn::{BatchNorm2d, Forward, LayerNorm, Linear, Module, Sequential};
use kiln::{CompileOptions, DType, Result, Tensor, compile, no_grad};
use kiln_models::workloads::{self, Setup, Workload};

/// The operations except attention: names and descriptions.
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
/// The networks that also run with weights and inputs of bf16.
const BF16_NETWORKS: [&str; 6] = [
    "resnet50",
    "resnet50-8",
    "mobilenet",
    "unet",
    "encoder",
    "decoder-cached",
];

/// Returns the name and the description of every workload.
pub fn names() -> impl Iterator<Item = (String, String)> {
    let attention = ATTENTION.into_iter().flat_map(|(suffix, description)| {
        [256, 1024, 4096].map(|keys| {
            let description = format!("{description}, 12 heads of 64, {keys} keys");
            (format!("attention-{keys}{suffix}"), description)
        })
    });
    let bf16 = workloads::names().filter(|(name, _)| BF16_NETWORKS.contains(name));
    let bf16 = bf16.map(|(name, description)| {
        (
            format!("{name}{BF16_SUFFIX}"),
            format!("{description}, bf16"),
        )
    });
    let f32_workloads = OPERATIONS.into_iter().chain(workloads::names());
    let f32_workloads =
        f32_workloads.map(|(name, description)| (name.to_string(), description.to_string()));
    f32_workloads.chain(attention).chain(bf16)
}

/// Returns a workload with random weights.
///
/// # Errors
/// If there is no workload of that name.
pub fn workload(name: &str) -> Result<Workload> {
    let random = |shape: &[usize]| Tensor::randn(shape, DType::F32);
    let large = || random(&[4096, 4096]);
    let no_model = Sequential::new;
    if let Some(attention_workload) = name.strip_prefix("attention-").and_then(attention) {
        return attention_workload;
    }
    match name {
        "softmax" => operation(no_model(), vec![large()], |_, x| x[0].softmax(1)),
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
            operation(no_model(), x, |_, x| (&x[0] * &x[1] + &x[2]).gelu() * &x[3])
        }
        "matmul" => {
            let x = [0, 1].map(|_| random(&[1024, 1024])).to_vec();
            operation(no_model(), x, |_, x| x[0].matmul(&x[1]))
        }
        "linear" => operation(
            Linear::new(768, 3072)?,
            vec![random(&[256, 768])],
            |m, x| m.call(&x[0]),
        ),
        "bmm" => {
            let x = [0, 1].map(|_| random(&[64, 64, 64])).to_vec();
            operation(no_model(), x, |_, x| x[0].matmul(&x[1]))
        }
        "matvec" => operation(no_model(), vec![large(), random(&[4096])], |_, x| {
            x[0].matmul(&x[1])
        }),
        _ => {
            let options = CompileOptions::default();
            let mut setup = Setup::from(&options);
            let f32_name = name.strip_suffix(BF16_SUFFIX);
            let f32_name = f32_name.filter(|name| BF16_NETWORKS.contains(name));
            if f32_name.is_some() {
                setup.dtype = DType::BF16;
            }
            workloads::make(f32_name.unwrap_or(name), setup)
        }
    }
}

/// Returns attention of 12 heads of 64, by the number of keys. With the suffix `-step` it computes gradients too, with
/// `-bf16` it runs in bf16.
fn attention(name: &str) -> Option<Result<Workload>> {
    let bf16_name = name.strip_suffix(BF16_SUFFIX);
    let dtype = if bf16_name.is_some() {
        DType::BF16
    } else {
        DType::F32
    };
    let name = bf16_name.unwrap_or(name);
    let step_name = name.strip_suffix("-step");
    let keys: usize = step_name.unwrap_or(name).parse().ok()?;
    let heads = [0; 3].map(|_| Tensor::randn([1, 12, keys, 64], DType::F32).to_dtype(dtype));
    let attend = |x: &[Tensor]| x[0].scaled_dot_product_attention(&x[1], &x[2]);
    Some(match step_name.is_some() {
        true => gradients(heads.to_vec(), attend),
        false => operation(Sequential::new(), heads.to_vec(), move |_, x| attend(x)),
    })
}

/// Returns a workload that computes the mean square of a function, and the gradients of its inputs.
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
