//! The commands for ONNX models, as a user calls them.

use kiln::formats::read_npy;
use kiln_goldens::Folder;
use std::process::{Command, Output};

fn kiln(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(words).output().expect("the command runs")
}

/// The output of the command, which must exit with 0.
fn done(words: &[&str]) -> String {
    let out = kiln(words);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "kiln {words:?}: {error}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn a_model_is_shown_run_verified_measured_and_converted() -> Result<(), Box<dyn std::error::Error>>
{
    let folder = Folder::onnx_models("cli")?;
    let case = folder.path().join("lstm_classifier");
    let path = |name: &str| case.join(name).display().to_string();
    let (model, package, result) = (path("model.onnx"), path("model.kiln"), path("y.npy"));
    let shown = done(&["onnx", "inspect", &model]);
    assert!(
        shown.contains("takes ids          i64[batch, 21]"),
        "{shown}"
    );
    assert!(!shown.contains("lacks"), "{shown}");

    let input = format!("ids={}", path("test_data_set_1/input_0.pb"));
    let words = [
        "onnx", "run", &model, "--input", &input, "--output", &result,
    ];
    assert_eq!(done(&words), "");
    assert_eq!(read_npy(&result)?.shape()?, [2, 10]);

    assert!(done(&["onnx", "verify", &model, "--size", "batch=3"]).contains("forward"));
    let bench = ["onnx", "bench", &model, "--time", "1", "--rounds", "1"];
    assert!(done(&bench).contains("forward (batch = "));

    done(&["onnx", "convert", &model, &package]);
    let shown = done(&["inspect", &package]);
    assert!(
        shown.contains("takes ids          i64[batch, 21]"),
        "{shown}"
    );
    done(&["onnx", "convert", &model, &package, "--size", "batch=4"]);
    assert!(done(&["inspect", &package]).contains("i64[4, 21]"));

    let wrong = kiln(&["onnx", "run", &model, "--input", "x=none.npy"]);
    assert_eq!(wrong.status.code(), Some(1));
    Ok(())
}
