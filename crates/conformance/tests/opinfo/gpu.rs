//! The GPU of the tests.

use kiln_gpu_proof::{Part, Report, Settings};
use kiln_runtime::cuda;
use kiln_tensor::Device;
use kiln_testkit::sweep::Sweep;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

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
    let mut report = Report::default();
    Part::find(part).unwrap().run(&settings, &mut report);
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

/// The command on the emulated driver, with results in a folder of this name.
fn command(name: &str, arguments: &[&str]) -> (PathBuf, Command) {
    let out = std::env::temp_dir().join(format!("kiln-{name}-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln-conformance"));
    command.args(["gpu", "--out"]).arg(&out).args(arguments);
    command.env("KILN_CUDA_DRIVER", kiln_fake_cuda::library());
    (out, command)
}

/// The page as data.
fn found(out: &Path) -> Value {
    let json = std::fs::read(out.join("gpu.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn shown(output: &Output) -> String {
    let (text, errors) = (&output.stdout, &output.stderr);
    let [text, errors] = [text, errors].map(|t| String::from_utf8_lossy(t).into_owned());
    format!("{}: {text}\n{errors}", output.status)
}

#[test]
fn the_command_proves_the_emulated_device() {
    if device().is_none() {
        return;
    }
    let parts = "-training,-transformer,-digits";
    let (out, mut command) = command("gpu", &["--short", "--commit", "abc", "--parts", parts]);
    command.env("KILN_CUBLASLT", kiln_fake_cuda::library());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let page = std::fs::read_to_string(out.join("gpu.md")).unwrap();
    for line in [
        "Nothing is wrong.",
        "- commit: abc",
        "none: the device is emulated",
    ] {
        assert!(page.contains(line), "{page}");
    }
    let json = found(&out);
    let held = |part: &str| json["parts"][part]["held"].as_u64().unwrap();
    assert!(held("vectors") > 100 && held("samples") > 50 && held("programs") == 10);
    assert!(held("families") > 30 && held("machine") == 1 && held("models") == 4);
    let measured = ["products", "convolutions", "attention", "rows"];
    // Products by Kiln, and by the stand-in for cuBLASLt.
    assert_eq!(measured.map(held), [2 * 15, 24, 9, 14]);
    // The emulator's outputs are not goldens, and its time is not a figure.
    assert!(!out.join("hardware.tar").exists());
    for part in measured {
        assert_eq!(json["parts"][part]["figures"], serde_json::json!([]));
        assert!(!page.contains("predicted"), "{page}");
    }
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn what_finds_no_time_is_said_and_keeps_what_it_had() {
    if device().is_none() {
        return;
    }
    let parts = [
        "--parts",
        "programs,gradients",
        "--limit",
        "14",
        "--seeds",
        "100000",
    ];
    let (out, mut command) = command("late", &parts);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", shown(&output));
    let json = found(&out);
    let part = |name: &str| json["parts"][name].clone();
    assert!(part("programs")["held"].as_u64() > Some(3), "{json}");
    for name in ["programs", "gradients"] {
        assert_eq!(
            part(name)["left_out"].as_array().unwrap().len(),
            1,
            "{json}"
        );
        assert_eq!(part(name)["wrong"], serde_json::json!([]));
    }
    std::fs::remove_dir_all(out).unwrap();
}

/// However the command ends, each result that it has shown is in its file, and the page can be made of these.
#[test]
#[cfg(unix)]
fn nothing_is_lost_when_it_is_killed() {
    if device().is_none() {
        return;
    }
    // A third of the moments, unless all are wanted.
    let step = if Sweep::wanted().is_some() { 1 } else { 3 };
    for moment in (0..13).step_by(step) {
        let arguments = ["--parts", "vectors,programs", "--seeds", "100000"];
        let (out, mut command) = command("killed", &arguments);
        let mut child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        if moment < 10 {
            std::thread::sleep(Duration::from_millis(600 + 350 * moment));
        } else {
            // Between two parts: the second is announced, its process about to start.
            let mut lines = stdout.lines().map(Result::unwrap);
            assert!(lines.any(|l| l.starts_with("programs: ")));
            std::thread::sleep(Duration::from_millis(moment - 10));
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), None);
        // The process of a part is killed by the end of the one that started it.
        std::thread::sleep(Duration::from_millis(300));
        if !out.join("facts.json").exists() {
            continue;
        }
        let wrong = String::from_utf8_lossy(&output.stderr)
            .matches("  WRONG ")
            .count();
        let mut page = Command::new(env!("CARGO_BIN_EXE_kiln-conformance"));
        page.args(["gpu", "--page", "--out"]).arg(&out);
        let code = page.output().unwrap().status.code();
        let json = found(&out);
        let lines = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
        let held = |text: &str| text.lines().filter(|l| l.starts_with("{\"held\"")).count() as u64;
        for name in ["vectors", "programs"] {
            let text = lines(&format!("{name}.jsonl"));
            let count = json["parts"][name]["held"].as_u64().unwrap_or(0);
            assert_eq!(count, held(&text), "{name}, killed at moment {moment}");
        }
        // One part at least is not at its end.
        assert_eq!((wrong, code), (0, Some(3)), "killed at moment {moment}");
        std::fs::remove_dir_all(out).unwrap();
    }
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
        errors.contains("no part nothing; there are machine"),
        "{errors}"
    );
}
