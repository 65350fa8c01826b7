//! Files as the package `tensorboard` reads them; skipped where Python does not have it.

mod errors;
mod files;
mod graph;
mod kinds;
mod server;
mod training;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.is_file()).collect();
    files.sort();
    files
}

/// Everything that TensorBoard reads in a folder; `None` after a line about the skipped test.
fn read(folder: &Path) -> Option<Value> {
    python("read.py", folder, &[])
}

/// The answers of TensorBoard's server for a folder of runs; `None` after a line about the skipped test.
fn served(folder: &Path, paths: &[&str]) -> Option<Vec<Value>> {
    let answers = python("serve.py", folder, paths)?;
    let answers = answers.as_array().unwrap().clone();
    for (path, answer) in paths.iter().zip(&answers) {
        assert_eq!(answer["status"], 200, "{path}: {answer}");
    }
    let body = |a: &Value| match a["kind"] == "application/json" {
        true => serde_json::from_str(a["body"].as_str().unwrap()).unwrap(),
        false => a.clone(),
    };
    Some(answers.iter().map(body).collect())
}

/// The JSON that one of this folder's scripts prints.
fn python(script: &str, folder: &Path, arguments: &[&str]) -> Option<Value> {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python)
        .args(["-c", "import tensorboard, google.protobuf, numpy"])
        .output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3 with tensorboard (KILN_PYTHON names another)");
        return None;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tensorboard");
    let output = Command::new(&python)
        .arg(tests.join(script))
        .arg(folder)
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn decoded(png: &Value) -> (u32, u32, Vec<u8>) {
    let bytes: Vec<u8> = serde_json::from_value(png.clone()).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    (info.width, info.height, pixels)
}
