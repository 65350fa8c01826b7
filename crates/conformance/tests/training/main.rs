//! PyTorch's training runs: first gradients, every loss, final weights and running statistics.

use kiln_conformance::{Array, Run, read_tensors, unpack};
use std::path::{Path, PathBuf};

const RUNS: [&str; 4] = ["cnn_adamw_cosine", "cnn_sgd", "lm_adamw", "lm_sgd"];

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn goldens(name: &str) -> (Folder, PathBuf) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/training.tar.xz");
    let name = format!("kiln-{name}-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    unpack(&archive, &folder.0).unwrap();
    let root = folder.0.join("training");
    (folder, root)
}

#[track_caller]
fn compare(what: &str, found: &Array, expected: &Array, tolerance: impl Fn(f64) -> f64) {
    assert_eq!(found.dtype, expected.dtype, "{what}");
    assert_eq!(found.shape, expected.shape, "{what}");
    let pairs = found.to_f64().into_iter().zip(expected.to_f64());
    for (i, (a, b)) in pairs.enumerate() {
        let most = tolerance(b);
        assert!(
            (a - b).abs() <= most,
            "{what}[{i}]: {a} is not {b} ± {most:e}"
        );
    }
}

#[test]
fn runs_follow_pytorch() {
    let (_folder, root) = goldens("runs");
    for name in RUNS {
        let folder = root.join(name);
        let run = Run::load(&folder).unwrap();
        let found = run.train().unwrap();
        let settings = &run.settings;
        let list = |key: &str| -> Vec<f64> {
            let values = settings[key].as_array().unwrap().iter();
            values.map(|v| v.as_f64().unwrap()).collect()
        };
        let tolerances = list("loss_tol");
        let losses = &found["losses"];
        assert_eq!(losses.shape, [tolerances.len()]);
        for (i, (a, b)) in losses.to_f64().into_iter().zip(list("losses")).enumerate() {
            let off = (a - b).abs();
            assert!(off <= tolerances[i], "{name}: loss {i} is {a}, not {b}");
        }
        let read = |file: &str| read_tensors(&folder.join(file)).unwrap();
        let gradients = read("grad0.safetensors");
        for (key, expected) in &gradients {
            let what = format!("grad0.{key}");
            let tolerance = |b: f64| 1e-6 + 1e-4 * b.abs();
            compare(
                &format!("{name}: {what}"),
                &found[&what],
                expected,
                tolerance,
            );
        }
        let finals = read("final.safetensors");
        for (key, expected) in &finals {
            let what = format!("final.{key}");
            let most = settings["final_tol"][key].as_f64().unwrap();
            let tolerance = |b: f64| most + 1e-5 * b.abs();
            compare(
                &format!("{name}: {what}"),
                &found[&what],
                expected,
                tolerance,
            );
        }
        assert_eq!(found.len(), 1 + gradients.len() + finals.len());
    }
}

#[test]
fn the_schedule_is_the_one_that_was_used() {
    let (_folder, root) = goldens("schedule");
    let run = Run::load(&root.join("cnn_adamw_cosine")).unwrap();
    let base = run.settings["hyper"]["lr"].as_f64().unwrap();
    let rates = run.rates(base).unwrap();
    let listed = run.settings["lrs"].as_array().unwrap();
    assert_eq!(rates.len(), listed.len());
    for (a, b) in rates.iter().zip(listed) {
        assert!((a - b.as_f64().unwrap()).abs() <= 1e-15, "{a} is not {b}");
    }
}
