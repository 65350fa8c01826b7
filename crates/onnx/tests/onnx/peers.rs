//! Exported models, loaded again and beside onnxruntime.

use crate::results::difference;
use kiln_onnx::{Data, Export, Kind, export, write_value};
use kiln_tensor::{Compiled, Tensor};
use std::panic::Location;
use std::path::PathBuf;
use std::process::Command;

/// Exported models with inputs and results, in a folder that is removed behind.
pub struct Cases {
    folder: PathBuf,
    tolerance: [f64; 2],
}

impl Drop for Cases {
    fn drop(&mut self) {
        if std::env::var_os("KILN_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl Cases {
    /// No models yet. Results may differ by `rtol` of a value and `atol`.
    pub fn new(name: &str, tolerance: [f64; 2]) -> Cases {
        let name = format!("kiln-onnx-export-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Cases { folder, tolerance }
    }

    /// Exports a function, loads it and compares the results of runs with these lists of arguments, each of which finds
    /// the `Var`s as the one before left them. Returns the model's path.
    pub fn add<I, O>(
        &self,
        name: &str,
        function: &Compiled<I, O>,
        sets: &[&[Tensor]],
        options: Export,
    ) -> Result<PathBuf, String> {
        let case = self.folder.join(name);
        std::fs::create_dir_all(&case).unwrap();
        let model = case.join("model.onnx");
        if let Err(e) = export(function, &model, options) {
            std::fs::remove_dir_all(&case).unwrap();
            return Err(e.message().to_string());
        }
        let states = function.signature().states.iter().zip(function.states());
        let states: Vec<_> = states.filter(|(s, _)| s.output.is_some()).collect();
        for (i, arguments) in sets.iter().enumerate() {
            let mut inputs = arguments.to_vec();
            let read = states.iter().filter(|(s, _)| s.input.is_some());
            inputs.extend(read.map(|(_, var)| var.get().detach().realize().unwrap().clone()));
            let handles: Vec<_> = arguments.iter().map(|t| t.as_ref()).collect();
            let results = function.run_at(&handles, Location::caller()).unwrap();
            let mut outputs: Vec<Tensor> = results.into_iter().map(Tensor::from).collect();
            outputs.extend(states.iter().map(|(_, var)| var.get().detach()));
            let set = case.join(format!("test_data_set_{i}"));
            std::fs::create_dir_all(&set).unwrap();
            let write = |kind: &str, j: usize, t: &Tensor| {
                let bytes = write_value("", &Data::from(t), Kind::Tensor).unwrap();
                std::fs::write(set.join(format!("{kind}_{j}.pb")), bytes).unwrap();
            };
            for (kind, list) in [("input", &inputs), ("output", &outputs)] {
                for (j, t) in list.iter().enumerate() {
                    write(kind, j, t);
                }
            }
        }
        difference(&case, self.tolerance).unwrap_or_else(|e| panic!("{name}, loaded again: {e}"));
        Ok(model)
    }

    /// Checks all models and their results with onnxruntime, if there is a Python that has it.
    pub fn beside_onnxruntime(&self) {
        let python = std::env::var("KILN_PYTHON").unwrap_or("python3".into());
        let has = |p: &str| {
            let mut command = Command::new(p);
            let output = command
                .args(["-c", "import onnx, onnxruntime, numpy"])
                .output();
            output.is_ok_and(|o| o.status.success())
        };
        if !has(&python) {
            return println!(
                "skipped: there is no python3 with onnx and onnxruntime (KILN_PYTHON names another)"
            );
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/onnx/peers.py");
        let tolerance = self.tolerance.map(|t| t.to_string());
        let output = Command::new(python)
            .arg(script)
            .arg(&self.folder)
            .args(tolerance)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("{text}");
        assert!(output.status.success(), "{text}{errors}");
    }
}
