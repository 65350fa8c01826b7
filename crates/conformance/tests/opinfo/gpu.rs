//! The GPU of the tests.

use kiln_gpu_proof::{Part, Settings};
use kiln_runtime::cuda;
use kiln_tensor::Device;
use kiln_testkit::sweep::Sweep;

/// The emulated device, or that of the driver which `KILN_CUDA_DRIVER` names; else a line that says what is
/// skipped.
pub(crate) fn device() -> Option<Device> {
    cuda::set_driver(kiln_fake_cuda::library());
    if let Err(e) = cuda::Nvrtc::get() {
        let message = e.to_string();
        eprintln!("skipped: {}", message.lines().next().unwrap_or_default());
        return None;
    }
    Some(Device::cuda(0).expect("the driver has a device"))
}

/// Runs a part of the proof on a share that every run of the tests can afford, or on all of it: these numbers
/// of seeds, 1 for a part without.
fn prove(part: &str, [few, all]: [usize; 2]) {
    let Some(device) = device() else { return };
    let sweep = Sweep::wanted();
    let seeds = sweep.map_or(0..few, |s| s.share(all));
    if seeds.is_empty() {
        return;
    }
    let settings = Settings {
        first: seeds.start as u64,
        seeds: seeds.len() as u64,
        short: sweep.is_none(),
        ..Settings::new(device)
    };
    let report = Part::named(part).unwrap().run(&settings);
    println!("{part}: {} hold; {:?}", report.held, report.notes);
    assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
    assert!(report.held > 0, "nothing was checked");
}

#[test]
fn random_programs_give_what_the_reference_gives() {
    prove("programs", [60, 2000]);
}

#[test]
fn gradients_of_random_programs_give_what_the_reference_gives() {
    prove("gradients", [15, 2000]);
}

#[test]
fn training_runs_follow_pytorch() {
    prove("training", [1, 1]);
}

#[test]
fn a_transformer_trains_as_on_the_cpu() {
    prove("transformer", [1, 1]);
}

#[test]
fn a_classifier_trains_as_on_the_cpu() {
    prove("digits", [1, 1]);
}

#[test]
fn the_command_proves_the_emulated_device() {
    if device().is_none() {
        return;
    }
    let out = std::env::temp_dir().join(format!("kiln-gpu-{}", std::process::id()));
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_kiln-conformance"))
        .args(["gpu", "--short", "--commit", "abc", "--out"])
        .arg(&out)
        .args(["--parts", "-training,-transformer,-digits"])
        .env("KILN_CUDA_DRIVER", kiln_fake_cuda::library())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let page = std::fs::read_to_string(out.join("gpu.md")).unwrap();
    for line in [
        "Nothing is wrong.",
        "- commit: abc",
        "none: the device is emulated",
    ] {
        assert!(page.contains(line), "{page}");
    }
    let json = std::fs::read(out.join("gpu.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let held = |part: &str| json["parts"][part]["held"].as_u64().unwrap();
    assert!(held("vectors") > 100 && held("samples") > 50 && held("programs") == 10);
    assert!(held("bandwidth") > 6 && held("products") == 18 && held("models") == 4);
    // The emulator's outputs are no goldens, and its time is no figure.
    assert!(!out.join("hardware.tar").exists());
    assert_eq!(json["parts"]["bandwidth"]["figures"], serde_json::json!([]));
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn the_command_says_what_is_wrong() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_kiln-conformance"))
        .args(["gpu", "--parts", "nothing"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("no part nothing; there are vectors"),
        "{errors}"
    );
}
