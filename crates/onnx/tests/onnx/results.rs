//! Results beside expected ones.

use kiln_goldens::Folder;
use kiln_nn::Module;
use kiln_onnx::{Data, Kind, Model, load, read_value};
use kiln_tensor::{DType, Device, Tensor};
use std::path::{Path, PathBuf};

/// The files of a folder whose names begin with `prefix`, by their numbers.
pub fn numbered(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let file = |i: usize| folder.join(format!("{prefix}_{i}.pb"));
    (0..).map(file).take_while(|f| f.exists()).collect()
}

/// The folders of a folder, sorted.
pub fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).unwrap();
    let paths = entries.map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> = paths.filter(|p| p.is_dir()).collect();
    found.sort();
    found
}

/// The models that PyTorch exported, and those of the folder that `KILN_ONNX_MODELS` names.
pub fn models(folder: &Folder) -> Vec<PathBuf> {
    let more = std::env::var_os("KILN_ONNX_MODELS").into_iter();
    let more = more.flat_map(|f| folders(Path::new(&f)));
    folders(folder.path()).into_iter().chain(more).collect()
}

/// Runs the model of a folder on each of its data sets and returns the first difference.
pub fn difference(case: &Path, tolerance: [f64; 2]) -> Result<(), String> {
    difference_on(Device::Cpu, case, tolerance)
}

/// Runs the model of a folder on a device on each of its data sets and returns the first difference.
pub fn difference_on(device: Device, case: &Path, tolerance: [f64; 2]) -> Result<(), String> {
    let model = load(case.join("model.onnx")).map_err(|e| e.to_string())?;
    model.to(device).map_err(|e| e.to_string())?;
    for set in folders(case) {
        run(&model, device, &set, tolerance).map_err(|e| format!("{}: {e}", set.display()))?;
    }
    Ok(())
}

/// Checks all cases on a device.
#[track_caller]
pub fn assert_right_on(device: Device, cases: &[PathBuf]) {
    let (wrong, all) = (wrong_on(device, cases), cases.len());
    assert!(wrong.is_empty(), "{} of {all} are wrong", wrong.len());
}

/// Returns the cases that are wrong on a device, each with the difference, and prints them.
pub fn wrong_on(device: Device, cases: &[PathBuf]) -> Vec<String> {
    let wrong = cases.iter().filter_map(|case| {
        let e = difference_on(device, case, [1e-3, 1e-6]).err()?;
        kiln_fake_cuda::reset();
        let name = case.file_name().unwrap_or_default().display();
        println!("WRONG {name}: {e}");
        Some(format!("{name}: {e}"))
    });
    wrong.collect()
}

/// Compiles the model of a folder for sizes that stay open, runs it on each data set and returns the first difference.
pub fn difference_of_compiled(case: &Path, tolerance: [f64; 2]) -> Result<(), String> {
    let model = load(case.join("model.onnx")).map_err(|e| e.to_string())?;
    let specs = model.specs(&[]).map_err(|e| e.to_string())?;
    let compiled = model.compile(specs).map_err(|e| e.to_string())?;
    for set in folders(case) {
        let inputs = numbered(&set, "input");
        let inputs: Vec<Tensor> = inputs.iter().map(|f| tensor(f)).collect();
        let outputs = compiled.run(inputs).map_err(|e| e.to_string())?;
        for (got, file) in outputs.iter().zip(numbered(&set, "output")) {
            same_tensor(got, &tensor(&file), tolerance)?;
        }
    }
    Ok(())
}

/// The tensor of a file.
pub fn tensor(file: &Path) -> Tensor {
    match read_value(&std::fs::read(file).unwrap(), Kind::Tensor).unwrap() {
        Data::Tensor(t) => t,
        other => panic!("{other:?} is not a tensor"),
    }
}

fn moved(data: Data, device: Device) -> Data {
    match data {
        Data::Tensor(t) => Data::Tensor(t.to(device)),
        Data::Sequence(list) => {
            Data::Sequence(list.into_iter().map(|d| moved(d, device)).collect())
        }
        other => other,
    }
}

fn run(model: &Model, device: Device, set: &Path, tolerance: [f64; 2]) -> Result<(), String> {
    let files = numbered(set, "input");
    let mut ports: Vec<_> = model.inputs().iter().collect();
    if files.len() > ports.len() {
        ports = model.all_inputs().collect();
    }
    let read = |file: &PathBuf, kind| {
        read_value(&std::fs::read(file).unwrap(), kind).map_err(|e| e.to_string())
    };
    let mut inputs = Vec::new();
    for (file, port) in files.iter().zip(ports) {
        inputs.push((port.name.clone(), moved(read(file, port.kind)?, device)));
    }
    let outputs = model.run(inputs).map_err(|e| e.to_string())?;
    let expected = numbered(set, "output");
    for (((name, got), port), file) in outputs.iter().zip(model.outputs()).zip(&expected) {
        if let Data::Tensor(t) = got
            && t.device() != device
            && !model.inputs().is_empty()
        {
            return Err(format!("{name} is on {}", t.device()));
        }
        let got = moved(got.clone(), Device::Cpu);
        same(&got, &read(file, port.kind)?, tolerance).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

fn same(got: &Data, want: &Data, tolerance: [f64; 2]) -> Result<(), String> {
    match (got, want) {
        (Data::Tensor(got), Data::Tensor(want)) => same_tensor(got, want, tolerance),
        (Data::Sequence(got), Data::Sequence(want)) if got.len() == want.len() => got
            .iter()
            .zip(want)
            .try_for_each(|(a, b)| same(a, b, tolerance)),
        (Data::Text(got), Data::Text(want)) if got == want => Ok(()),
        (Data::Maps(got), Data::Maps(want)) if got.keys == want.keys => {
            same_tensor(&got.values, &want.values, tolerance)
        }
        (Data::Nothing, Data::Nothing) => Ok(()),
        _ => Err(format!("{got:?} instead of {want:?}")),
    }
}

/// Dtype and shape exactly, integers and bools too, floats within `rtol` and `atol` with NaN equal to NaN.
fn same_tensor(got: &Tensor, want: &Tensor, [rtol, atol]: [f64; 2]) -> Result<(), String> {
    let about = |t: &Tensor| (t.dtype(), t.shape().unwrap());
    if about(got) != about(want) {
        return Err(format!("{:?} instead of {:?}", about(got), about(want)));
    }
    if !want.dtype().is_float() {
        return match got.to_bytes().unwrap() == want.to_bytes().unwrap() {
            true => Ok(()),
            false => Err(format!("{got} instead of {want}")),
        };
    }
    let rtol = match want.dtype() {
        DType::BF16 => rtol.max(2f64.powi(-6)),
        DType::F16 => rtol.max(2f64.powi(-9)),
        _ => rtol,
    };
    let floats = |t: &Tensor| t.to_dtype(DType::F64).to_vec::<f64>().unwrap();
    let mut pairs = floats(got).into_iter().zip(floats(want));
    let differs = |(a, b): &(f64, f64)| {
        let near = (a - b).abs() <= atol + rtol * b.abs();
        !(a == b || near || a.is_nan() && b.is_nan())
    };
    match pairs.find(differs) {
        Some((a, b)) => Err(format!("{a} instead of {b}")),
        None => Ok(()),
    }
}
