//! Models of scikit-learn that skl2onnx exported (`learn.py`).

use crate::results::{assert_right_on, folders};
use kiln_goldens::Folder;
use kiln_onnx::{Data, Keys, Model, load};
use kiln_tensor::{DType, Device, Result, Tensor};

fn model(folder: &Folder, name: &str) -> Result<Model> {
    load(folder.path().join(name).join("model.onnx"))
}

/// Classifiers, regressors, clusters and transforms give onnxruntime's results.
#[test]
fn scikit_learns_estimators() {
    let folder = Folder::onnx_learn("estimators").unwrap();
    let cases = folders(folder.path());
    assert_eq!(cases.len(), 50);
    assert_right_on(Device::Cpu, &cases);
}

/// A classifier with labels of text and a list of maps is one program for any number of rows, which gives the numbers of
/// classes and the values of the maps.
#[test]
fn a_classifier_is_one_program() -> Result<()> {
    let folder = Folder::onnx_learn("program").unwrap();
    let model = model(&folder, "logistic_words")?;
    let rows = Tensor::randn([5, 4], DType::F32).realize()?.clone();
    let out = model.run([("X", &rows)])?;
    let Data::Maps(maps) = out.value("output_probability")? else {
        panic!("{out:?}");
    };
    let names = ["ant", "bee", "cow"].map(String::from);
    assert_eq!(maps.keys, Keys::Texts(names.clone().into()));
    let compiled = model.compile(model.specs(&[])?)?;
    let results = compiled.run(vec![rows])?;
    let numbers = results[0].to_vec::<i64>()?;
    let texts = numbers.iter().map(|i| names[*i as usize].clone());
    assert_eq!(
        out.text("output_label")?.elements(),
        texts.collect::<Vec<String>>()
    );
    assert_eq!(results[1].to_vec::<f32>()?, maps.values.to_vec::<f32>()?);
    assert!(model.on_host().is_empty());
    Ok(())
}
