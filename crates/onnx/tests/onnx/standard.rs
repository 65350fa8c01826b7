//! The tests of the standard, and of onnxruntime's own operators.

use crate::results::{difference, folders};
use kiln_goldens::Folder;
use std::path::PathBuf;

/// Runs all cases and lists those that are wrong.
fn check(cases: &[PathBuf]) {
    let wrong = cases.iter().filter_map(|case| {
        let e = difference(case, [1e-3, 1e-6]).err()?;
        Some(format!("{}: {e}", case.display()))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(
        wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// All 1,389 tests give the standard's results. Programs for the engine run them, whatever their shapes come from.
#[test]
fn the_standards_tests_pass() {
    let folder = Folder::onnx("standard").unwrap();
    let suites = folders(folder.path());
    let cases: Vec<PathBuf> = suites.iter().flat_map(|suite| folders(suite)).collect();
    assert_eq!(cases.len(), 1389);
    check(&cases);
}

/// Operators of `com.microsoft`, and products and convolutions of dequantised values, give onnxruntime's results.
#[test]
fn onnxruntimes_operators() {
    let folder = Folder::onnx_contrib("contrib").unwrap();
    let cases = folders(folder.path());
    assert_eq!(cases.len(), 29);
    check(&cases);
}
