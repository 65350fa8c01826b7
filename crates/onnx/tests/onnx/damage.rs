//! Damaged files give errors: no panic, and no memory beyond what a file holds.

use crate::results::folders;
use kiln_goldens::Folder;
use kiln_onnx::{Data, Model};
use kiln_tensor::Tensor;

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
    let mut loaded = 0;
    for seed in 0..seeds {
        let mut rng = fastrand::Rng::with_seed(seed);
        let case = &cases[rng.usize(..cases.len())];
        let mut bytes = std::fs::read(case.join("model.onnx")).unwrap();
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
        let Ok(model) = Model::from_bytes(bytes) else {
            continue;
        };
        loaded += 1;
        let inputs = model.inputs().iter().map(|port| {
            let dims = port.dims.clone().unwrap_or_default();
            let size = |d: &kiln_tensor::DimSpec| match d {
                kiln_tensor::DimSpec::Known(n) => (*n).min(8),
                kiln_tensor::DimSpec::Symbol(_) => 2,
            };
            let shape: Vec<i64> = dims.iter().map(size).collect();
            let dtype = port.dtype.unwrap_or(kiln_tensor::DType::F32);
            (port.name.clone(), Data::from(Tensor::zeros(shape, dtype)))
        });
        let inputs: Vec<_> = inputs.collect();
        let _ = model.run(inputs);
    }
    assert!(loaded > seeds / 20, "{loaded} models were read");
}
