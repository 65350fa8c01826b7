//! Damaged files give errors: no panic, and no memory beyond a limit.
//!
//! `KILN_FUZZ_SEEDS=50000 cargo test -p kiln-onnx -- damaged --nocapture` takes more of them.

use crate::results::folders;
use kiln_goldens::Folder;
use kiln_onnx::{Data, Kind, Model, Text};
use kiln_tensor::{DType, Device, DimSpec, Tensor};
use kiln_testkit::sweep::seeds;

/// Bits, lengths and ends of models are changed at random; what still loads is run on zeros. `KILN_FUZZ_SEEDS` is how many.
#[test]
fn damaged_models_are_errors() {
    let seeds = seeds(2000);
    Device::Cpu.set_memory_limit(Some(2 << 30));
    let (standard, newer) = (
        Folder::onnx("damage").unwrap(),
        Folder::onnx_newer("damage").unwrap(),
    );
    let contrib = Folder::onnx_contrib("damage").unwrap();
    let suites = folders(standard.path()).into_iter();
    let suites = suites.chain([newer.path().into(), contrib.path().into()]);
    let cases: Vec<_> = suites.flat_map(|suite| folders(&suite)).collect();
    let (mut loaded, mut panics) = (0, Vec::new());
    for seed in seeds.clone() {
        let mut rng = fastrand::Rng::with_seed(seed);
        let case = &cases[rng.usize(..cases.len())];
        let bytes = damaged(std::fs::read(case.join("model.onnx")).unwrap(), &mut rng);
        match std::panic::catch_unwind(|| run(bytes)) {
            Ok(was_read) => loaded += u64::from(was_read),
            Err(_) => panics.push((seed, case)),
        }
    }
    assert!(panics.is_empty(), "seeds {panics:?}");
    let count = seeds.end - seeds.start;
    assert!(loaded >= count / 20, "{loaded} models were read");
    if let Some(most) = peak() {
        println!("{loaded} of {count} were read; {} MiB at most", most >> 20);
        assert!(most < 4 << 30, "{most} bytes");
    }
}

/// The largest memory of the process so far, on Linux.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// Changes some bits, bytes or the length.
fn damaged(mut bytes: Vec<u8>, rng: &mut fastrand::Rng) -> Vec<u8> {
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..bytes.len());
        match rng.u8(..4) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes.truncate(at.max(1)),
            _ => {
                bytes.remove(at);
                bytes.push(0);
            }
        }
    }
    bytes
}

/// Runs a model on zeros. True if it could be read.
fn run(bytes: Vec<u8>) -> bool {
    let Ok(model) = Model::from_bytes(bytes) else {
        return false;
    };
    let inputs = model.inputs().iter().map(|port| {
        let size = |d: &DimSpec| match d {
            DimSpec::Known(n) => (*n).min(8),
            DimSpec::Symbol(_) => 2,
        };
        let dims = port.dims.clone().unwrap_or_default();
        let shape: Vec<i64> = dims.iter().map(size).collect();
        let dtype = port.dtype.unwrap_or(DType::F32);
        let data: Data = match port.kind {
            Kind::Text => {
                let shape: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
                let count = shape.iter().product();
                Text::new(vec!["a b"; count], &shape).unwrap().into()
            }
            _ => Tensor::zeros(shape, dtype).into(),
        };
        (port.name.clone(), data)
    });
    let inputs: Vec<_> = inputs.collect();
    let _ = model.run(inputs);
    true
}
