//! Every operator and its gradient in f16 and bf16: PyTorch's samples of f32, rounded.
//!
//! The expected result is that of the reference evaluation in f64 for the same rounded inputs; the reference agrees
//! with PyTorch on the original samples. The tolerance is derived: each result and each intermediate value may be
//! rounded, which has the effect of inputs that are off by a few roundings. So the reference also evaluates
//! perturbed inputs, and the deviations of its results are tolerated.

use crate::samples::together;
use kiln_goldens::samples::listed;
use kiln_goldens::{Array, Case, Engine, Folder, Kind, Outcome, ids, run, run_together};
use kiln_tensor::DType;
use kiln_testkit::sweep::Sweep;
use std::collections::{BTreeMap, BTreeSet};

/// Samples that request results in f32, which gradients in f16 or bf16 do not fit.
const IN_F32: &[&str] = &["cumprod/f32_00", "cumsum/f32_00", "prod/f32_00"];

/// The error of an operator that accepts only f32 and f64, as in PyTorch.
const WIDE: &str = "f32 or f64";

/// Roundings of a result, and of what it is computed from.
const ROUNDINGS: f64 = 8.0;

/// The conversion of the floats of a sample's tensors.
#[derive(Copy, Clone)]
enum Inputs {
    /// Rounded.
    Rounded,
    /// Rounded, then converted to f64.
    Exact,
    /// The same, with each float off by at most a rounding, drawn from this seed.
    Perturbed(u64),
}

fn converted(array: Array, dtype: DType, inputs: Inputs) -> Array {
    if array.dtype != DType::F32 {
        return array;
    }
    let rounded = array.tensor().to_dtype(dtype);
    let rounded = Array {
        dtype,
        bytes: rounded.to_bytes().unwrap(),
        shape: array.shape,
    };
    let seed = match inputs {
        Inputs::Rounded => return rounded,
        Inputs::Exact => return rounded.in_f64(),
        Inputs::Perturbed(seed) => seed,
    };
    let values = rounded.to_f64().into_iter().enumerate().map(|(i, x)| {
        let mut z = (seed << 32 | i as u64)
            .wrapping_add(1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z ^= z >> 29;
        z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let shift = (z >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        x * (1.0 + epsilon(dtype) * shift)
    });
    Array {
        dtype: DType::F64,
        bytes: values.flat_map(f64::to_le_bytes).collect(),
        shape: rounded.shape,
    }
}

/// Half of the distance from 1 to the next number.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    }
}

/// A sample whose floats are in f16 or bf16.
type Sample<'a> = (&'a String, DType);

fn load(folder: &Folder, (id, dtype): Sample, inputs: Inputs) -> Case {
    let convert = move |a: Array| converted(a, dtype, inputs);
    Case::load_with(folder.path(), id, &convert).unwrap()
}

/// Compares the outcome of a sample; returns the first deviation, or `Err` if the sample is refused.
fn check_sample(
    folder: &Folder,
    sample: Sample,
    outcome: Outcome,
) -> Result<Option<String>, String> {
    let (_, dtype) = sample;
    let found = match outcome {
        Outcome::Values(values) => values,
        Outcome::Unsupported(why) | Outcome::Error(why) => return Err(why),
    };
    let case = |inputs: Inputs| load(folder, sample, inputs);
    let reference = |inputs: Inputs| match run(&case(inputs), Engine::Reference) {
        Outcome::Values(values) => Some(values),
        _ => None,
    };
    let Some(wanted) = reference(Inputs::Exact) else {
        return Ok(Some("the reference has no result".into()));
    };
    let perturbed: Vec<BTreeMap<String, Array>> = (0..3)
        .filter_map(|i| reference(Inputs::Perturbed(i)))
        .collect();
    for (name, want) in &wanted {
        let Some(got) = found.get(name) else {
            return Ok(Some(format!("there is no {name}")));
        };
        if got.shape != want.shape {
            return Ok(Some(format!(
                "{name} is {:?} instead of {:?}",
                got.shape, want.shape
            )));
        }
        let others: Vec<Vec<f64>> = perturbed
            .iter()
            .filter_map(|m| Some(m.get(name)?.to_f64()))
            .collect();
        let why = difference(&got.to_f64(), &want.to_f64(), &others, dtype);
        if let Some(why) = why {
            return Ok(Some(format!("{name}: {why}")));
        }
    }
    Ok(None)
}

fn difference(got: &[f64], want: &[f64], perturbed: &[Vec<f64>], dtype: DType) -> Option<String> {
    let largest = if dtype == DType::F16 {
        65504.0
    } else {
        f64::from(f32::MAX)
    };
    let smallest = if dtype == DType::F16 {
        2f64.powi(-24)
    } else {
        2f64.powi(-133)
    };
    let deviations = |i: usize| perturbed.iter().map(move |p| (p[i] - want[i]).abs());
    // A result that jumps for slightly different inputs is not compared there.
    let jumps = |i: usize| {
        perturbed
            .iter()
            .any(|m| m[i].is_finite() != want[i].is_finite())
    };
    let all = (0..want.len())
        .flat_map(deviations)
        .filter(|d| d.is_finite());
    let sensitivity = all.fold(0.0, f64::max);
    for i in 0..want.len() {
        let (a, b) = (got[i], want[i]);
        let same = a == b || a.is_nan() && b.is_nan();
        let overflow = b.abs() * (1.0 + 4.0 * epsilon(dtype)) >= largest;
        if same || jumps(i) || overflow {
            continue;
        }
        let tolerance = ROUNDINGS * (epsilon(dtype) * b.abs() + sensitivity + smallest);
        let off = (a - b).abs();
        if off.is_nan() || off > tolerance {
            return Some(format!(
                "element {i} is {a:e} instead of {b:e}, within {tolerance:e}"
            ));
        }
    }
    None
}

/// One sample of each operator, with gradients where it has some.
fn one_each(folder: &Folder) -> Vec<String> {
    let mut found: BTreeMap<String, (bool, String)> = BTreeMap::new();
    for id in ids(folder.path()).unwrap() {
        let Some((op, name)) = id.split_once('/') else {
            continue;
        };
        let known = found.get(op).is_some_and(|(gradients, _)| *gradients);
        if known || !name.starts_with("f32") || !listed().contains(op) {
            continue;
        }
        let case = Case::load(folder.path(), &id).unwrap();
        let gradients = case.gradients.is_some();
        if case.kind == Kind::Value && (gradients || !found.contains_key(op)) {
            found.insert(op.to_string(), (gradients, id.clone()));
        }
    }
    found.into_values().map(|(_, id)| id).collect()
}

fn check(engine: Engine) {
    let folder = Folder::opinfo(match engine {
        Engine::Cuda(_) => "low-precision-cuda",
        _ => "low-precision",
    });
    let folder = folder.unwrap();
    let (mut wrong, mut refused, mut passed) = (Vec::new(), BTreeSet::new(), 0);
    let ids = one_each(&folder);
    let sweep = Sweep::wanted().filter(|_| matches!(engine, Engine::Cuda(_)));
    let range = sweep.map_or(0..ids.len(), |s| s.share(ids.len()));
    // Compiling kernels takes long: without a sweep, every operator runs in one of the two dtypes on a GPU.
    let alternate = matches!(engine, Engine::Cuda(_)) && sweep.is_none();
    let dtypes = |i: usize| match alternate {
        true => &[DType::F16, DType::BF16][i % 2..][..1],
        false => &[DType::F16, DType::BF16][..],
    };
    let samples = ids[range].iter().enumerate();
    let samples = samples.flat_map(|(i, id)| dtypes(i).iter().map(move |dtype| (id, *dtype)));
    let samples: Vec<Sample> = samples.collect();
    for samples in samples.chunks(together()) {
        let cases = samples.iter().map(|s| load(&folder, *s, Inputs::Rounded));
        let cases: Vec<Case> = cases.map(|c| c.move_to(engine.device())).collect();
        for (sample, outcome) in samples.iter().zip(run_together(&cases, engine)) {
            let (id, dtype) = sample;
            match check_sample(&folder, *sample, outcome) {
                Ok(None) => passed += 1,
                Ok(Some(why)) => wrong.push(format!("{id} in {dtype}: {why}")),
                Err(_) if IN_F32.contains(&&id[..]) => {}
                Err(why) if why.contains(WIDE) => {}
                Err(why) => {
                    refused.insert(format!("{id} in {dtype}: {why}"));
                }
            }
        }
    }
    println!("{engine:?}: {passed} samples pass in f16 and bf16");
    let text = |list: Vec<String>| list.join("\n");
    assert!(wrong.is_empty(), "{engine:?} is wrong on\n{}", text(wrong));
    let refused: Vec<String> = refused.into_iter().collect();
    assert!(refused.is_empty(), "{engine:?} refuses\n{}", text(refused));
}

#[test]
fn the_cpu_engine_computes_f16_and_bf16() {
    check(Engine::Cpu);
}

#[test]
fn the_cuda_engine_computes_f16_and_bf16() {
    if let Some(device) = crate::gpu::device() {
        check(Engine::Cuda(device));
    }
}
