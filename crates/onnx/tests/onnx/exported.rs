//! Whole models that PyTorch exported.

use crate::results::{difference, difference_of_compiled, models, tensor};
use kiln_goldens::Folder;
use kiln_nn::Module;
use kiln_nn::optim::{Adam, Optimizer};
use kiln_tensor::Tensor;
use serde_json::Value;

/// A BERT and an LSTM, at batches of 1 and 2, within the tolerance that their files state: compiled for each, and once
/// for any batch.
#[test]
fn models_that_pytorch_exported() {
    let folder = Folder::onnx_models("exported").unwrap();
    let models = models(&folder);
    assert!(models.len() >= 2);
    for model in models {
        assert!(
            kiln_onnx::load(model.join("model.onnx"))
                .unwrap()
                .on_host()
                .is_empty()
        );
        let meta: Value =
            serde_json::from_slice(&std::fs::read(model.join("meta.json")).unwrap()).unwrap();
        let tolerance = ["rtol", "atol"].map(|k| meta[k].as_f64().unwrap());
        difference(&model, tolerance).unwrap();
        difference_of_compiled(&model, tolerance).unwrap();
    }
}

/// The LSTM learns labels, with its weights under their names.
#[test]
fn a_loaded_model_is_trained() -> kiln_tensor::Result<()> {
    let folder = Folder::onnx_models("trained").unwrap();
    let case = folder.path().join("lstm_classifier");
    let model = kiln_onnx::load(case.join("model.onnx"))?;
    let mut opt = Optimizer::new(model.parameters(), Adam::new().lr(0.01))?;
    let ids = tensor(&case.join("test_data_set_1/input_0.pb"));
    let labels = Tensor::from([3i64, 7]);
    let mut losses = Vec::new();
    for _ in 0..10 {
        let scores = model.record([&ids])?.remove(0);
        let loss = scores.cross_entropy(&labels);
        opt.zero_grad();
        loss.backward()?;
        opt.step()?;
        losses.push(loss.item::<f32>()?);
    }
    assert!(losses[9] < 0.2 * losses[0], "{losses:?}");
    let names: Vec<String> = model
        .named_parameters()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(names.iter().any(|n| n == "fc.weight"), "{names:?}");
    Ok(())
}
