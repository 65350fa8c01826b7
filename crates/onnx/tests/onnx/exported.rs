//! Whole models that PyTorch exported.

use crate::results::{difference, folders};
use kiln_goldens::Folder;
use serde_json::Value;

/// A BERT and an LSTM, at batches of 1 and 2, within the tolerance that their files state.
#[test]
fn models_that_pytorch_exported() {
    let folder = Folder::onnx_models("exported").unwrap();
    let models = folders(folder.path());
    assert_eq!(models.len(), 2);
    for model in models {
        let meta: Value =
            serde_json::from_slice(&std::fs::read(model.join("meta.json")).unwrap()).unwrap();
        let tolerance = ["rtol", "atol"].map(|k| meta[k].as_f64().unwrap());
        difference(&model, tolerance).unwrap();
    }
}
