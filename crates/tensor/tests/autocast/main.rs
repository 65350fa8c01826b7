//! Autocast: its lists compared with PyTorch's row by row, casts, gradients, and scopes.

mod narrow;
mod ops;
mod scopes;

use kiln_tensor::*;
use ops::Call;
use serde_json::Value;

/// The operations that need the feature `linalg`. They don't take f16 or bf16.
const LINALG: [&str; 12] = [
    "inv",
    "cholesky",
    "qr",
    "svd",
    "cholesky_inverse",
    "cholesky_solve",
    "lstsq",
    "eigh",
    "cond",
    "svdvals",
    "eigvalsh",
    "solve",
];

fn list(device: &str) -> AutocastList {
    match device {
        "cpu" => AutocastList::Cpu,
        _ => AutocastList::Cuda,
    }
}

/// The dtypes of the operands in each case; see `reference.py`.
fn cases(count: usize, low: DType) -> Vec<Vec<DType>> {
    let other = match low {
        DType::BF16 => DType::F16,
        _ => DType::BF16,
    };
    let mut cases: Vec<Vec<DType>> = [DType::F32, low, other, DType::F64]
        .iter()
        .map(|d| vec![*d; count])
        .collect();
    if count > 1 {
        let mut mixed = vec![low; count];
        mixed[0] = DType::F32;
        cases.push(mixed);
        let mut mixed = vec![DType::F32; count];
        mixed[0] = low;
        cases.push(mixed);
    }
    cases
}

fn operands((shapes, _): &Call, dtypes: &[DType]) -> Vec<Tensor> {
    let operand = |(i, (shape, dtype)): (usize, (&Vec<usize>, &DType))| {
        let n: usize = shape.iter().product();
        let value = |k: usize| 0.3 + 0.5 * ((k * 37 + i * 11 + 5) % 101) as f64 / 101.0;
        let values: Vec<f64> = (0..n).map(value).collect();
        Tensor::from_slice(&values, &shape[..]).to_dtype(*dtype)
    };
    shapes.iter().zip(dtypes).enumerate().map(operand).collect()
}

#[test]
fn every_row_gives_the_dtype_that_pytorch_gives() {
    let reference: Value = serde_json::from_str(include_str!("reference.json")).unwrap();
    let mut compared = 0;
    for device in ["cpu", "cuda"] {
        for (name, call) in ops::all() {
            for low in [DType::BF16, DType::F16] {
                let rows = &reference[device][name][low.name()];
                let rows = rows
                    .as_array()
                    .unwrap_or_else(|| panic!("{name} is not in the reference"));
                for (dtypes, wanted) in cases(call.0.len(), low).iter().zip(rows) {
                    // Operations without a kernel in PyTorch may be computed here.
                    let Some(wanted) = wanted.as_str().filter(|w| *w != "error") else {
                        continue;
                    };
                    let x = operands(&call, dtypes);
                    let _inside = set_autocast(Autocast::new(low).list(list(device)));
                    let y = (call.1)(&x);
                    // Operations in no list may be errors here: with mixed operands, or with f16 or bf16 in linear
                    // algebra.
                    let row = autocast_ops().iter().find(|op| op.name == name);
                    let rule = row.and_then(|op| op.rule(list(device)));
                    let mixed = dtypes.iter().any(|d| *d != dtypes[0]);
                    if rule.is_none() && (mixed || LINALG.contains(&name)) && y.error().is_some() {
                        continue;
                    }
                    let what = format!("{name} of {dtypes:?} by the list of {device} for {low}");
                    y.check().unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(y.dtype().name(), wanted, "{what}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 2000, "{compared}");
}

#[test]
fn every_operation_in_the_lists_is_compared() {
    let known: Vec<&str> = ops::all().into_iter().map(|(name, _)| name).collect();
    for op in autocast_ops() {
        // A rank is an integer.
        let compared = known.contains(&op.name) || op.name == "matrix_rank";
        let left_out = cfg!(not(feature = "linalg")) && LINALG.contains(&op.name);
        assert!(compared || left_out, "{} is not compared", op.name);
    }
}

/// A result, and the gradients of its sum.
fn with_gradients(call: &dyn Fn(&[Tensor]) -> Tensor, x: &[Tensor]) -> Vec<Tensor> {
    let x: Vec<Tensor> = x.iter().map(|t| t.detach().requires_grad_(true)).collect();
    let y = call(&x);
    let mut all = vec![y.clone()];
    if y.requires_grad() {
        // Wide sums, so that the operation itself is compared.
        no_autocast(|| y.to_dtype(DType::F64).sum(()))
            .backward()
            .unwrap();
        for t in &x {
            let grad = t.grad().unwrap_or_else(|| t.zeros_like());
            assert_eq!(grad.dtype(), t.dtype());
            all.push(grad);
        }
    }
    all
}

/// Every operation in a list has bit for bit the result that it has for explicitly cast operands. So have its
/// gradients, which arrive in the dtype of the operand.
#[test]
fn casts_are_those_made_by_hand() {
    for (name, call) in ops::all() {
        for device in ["cpu", "cuda"] {
            let row = autocast_ops().iter().find(|op| op.name == name);
            let Some(rule) = row.and_then(|op| op.rule(list(device))) else {
                continue;
            };
            let random = name.starts_with("fractional");
            for dtypes in cases(call.0.len(), DType::BF16) {
                let x = operands(&call, &dtypes);
                let dtype = match rule {
                    AutocastRule::Lower => DType::BF16,
                    AutocastRule::Full => DType::F32,
                    AutocastRule::Widest if dtypes.iter().all(|d| *d == DType::BF16) => DType::BF16,
                    AutocastRule::Widest => DType::F32,
                    AutocastRule::Refused => continue,
                };
                if dtypes.contains(&DType::F64) || random {
                    continue;
                }
                let options = Autocast::new(DType::BF16).list(list(device));
                let found = {
                    let _inside = set_autocast(options);
                    with_gradients(&call.1, &x)
                };
                let cast = |t: &Tensor| t.to_dtype(dtype);
                let by_hand = |x: &[Tensor]| (call.1)(&x.iter().map(cast).collect::<Vec<_>>());
                let wanted = with_gradients(&by_hand, &x);
                for (found, wanted) in found.iter().zip(&wanted) {
                    let bits = |t: &Tensor| {
                        t.to_dtype(DType::F64)
                            .to_vec::<f64>()
                            .map(|v| v.into_iter().map(f64::to_bits).collect::<Vec<_>>())
                    };
                    assert_eq!(
                        bits(found).unwrap(),
                        bits(wanted).unwrap(),
                        "{name} of {dtypes:?}"
                    );
                }
            }
        }
    }
}
