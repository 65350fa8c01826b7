//! Damaged files give errors: no panic, and no memory beyond what a file holds.

use crate::results::folders;
use kiln_goldens::Folder;
use kiln_onnx::Model;
use kiln_tensor::{DType, DimSpec, Tensor};

/// Bits, lengths and ends of models are changed at random; what still loads is run on zeros. `KILN_SEEDS` is how many.
#[test]
fn damaged_models_are_errors() {
    let seeds = std::env::var("KILN_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(2000);
    let folder = Folder::onnx("damage").unwrap();
    let cases: Vec<_> = folders(folder.path())
        .iter()
        .flat_map(|suite| folders(suite))
        .collect();
    let (mut loaded, mut panics) = (0, Vec::new());
    for seed in 0..seeds {
        let mut rng = fastrand::Rng::with_seed(seed);
        let case = &cases[rng.usize(..cases.len())];
        let bytes = damaged(std::fs::read(case.join("model.onnx")).unwrap(), &mut rng);
        match std::panic::catch_unwind(|| run(bytes)) {
            Ok(was_read) => loaded += u64::from(was_read),
            Err(_) => panics.push((seed, case)),
        }
    }
    assert!(panics.is_empty(), "seeds {panics:?}");
    assert!(loaded > seeds / 20, "{loaded} models were read");
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
        (port.name.clone(), Tensor::zeros(shape, dtype))
    });
    let inputs: Vec<_> = inputs.collect();
    let _ = model.run(inputs);
    true
}
