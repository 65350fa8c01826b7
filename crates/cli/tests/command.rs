//! The command as a user calls it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command in an environment that sets nothing of Kiln's.
fn kiln(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    for name in ["KILN_TUNE", "KILN_TUNE_STORE", "KILN_PRECISION"] {
        command.env_remove(name);
    }
    command.args(words).output().expect("the command runs")
}

/// Its output, if it exits with 0.
fn done(words: &[&str]) -> String {
    let out = kiln(words);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "kiln {words:?}: {error}");
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&done(words)).expect("JSON")
}

#[test]
fn bench_reports_every_workload_in_every_form() {
    let folder = Folder::new("bench");
    let (csv, html) = (folder.file("b.csv"), folder.file("b.html"));
    let words = [
        "bench",
        "matmul:8,16x8x8",
        "softmax:3x5",
        "conv2d:1x2x5x5:4x3x3:p1",
        "lstm",
    ];
    let options = [
        "--time", "5", "--rounds", "2", "--json", "--csv", &csv, "--html", &html,
    ];
    let report = json(&[&words[..], &options].concat());
    let results = report["results"].as_array().expect("a list");
    let names: Vec<&str> = results
        .iter()
        .filter_map(|r| r["workload"].as_str())
        .collect();
    let expected = [
        "matmul:8x8x8",
        "matmul:16x8x8",
        "softmax:3x5",
        "conv2d:1x2x5x5:4x3x3:p1",
        "lstm",
    ];
    assert_eq!(names, expected);
    for r in results {
        assert!(r["times"].as_array().is_some_and(|t| t.len() >= 2), "{r}");
        assert!(r["flops"].as_f64() > Some(0.0), "{r}");
        assert!(r["bytes"].as_f64() > Some(0.0), "{r}");
    }
    // 2 m k n.
    assert_eq!(results[1]["flops"].as_f64(), Some(2.0 * 16.0 * 8.0 * 8.0));
    assert!(report["peaks"]["flops"].as_f64() > Some(1e8));
    assert!(report["peaks"]["bandwidth"].as_f64() > Some(1e7));
    let lines = std::fs::read_to_string(csv).expect("a CSV file");
    assert_eq!(lines.lines().count(), 1 + expected.len());
    let page = std::fs::read_to_string(html).expect("a page");
    assert_eq!(page.matches("<svg").count(), 2);
    assert!(expected.iter().all(|name| page.contains(name)));
}

#[test]
fn bench_measures_ops_and_networks_on_a_gpu() {
    if let Err(e) = kiln_runtime::cuda::Nvrtc::get() {
        eprintln!("skipped: {e}");
        return;
    }
    let words = ["bench", "softmax:3x5", "lstm", "--device", "cuda:0"];
    let options = ["--time", "1", "--rounds", "1", "--no-peaks", "--json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(words).args(options);
    command.env("KILN_CUDA_DRIVER", kiln_fake_cuda::library());
    let out = command.output().expect("the command runs");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let device = report["device"].as_str().unwrap_or_default();
    assert!(
        !device.contains("CPU") && !device.contains("cpu"),
        "{device}"
    );
    for r in report["results"].as_array().expect("a list") {
        assert!(r["times"].as_array().is_some_and(|t| !t.is_empty()), "{r}");
        // On the CPU the products have algorithms.
        assert_eq!(r["algorithms"].as_array().map(Vec::len), Some(0), "{r}");
    }
}

#[test]
fn bench_prints_a_table_and_other_dtypes() {
    let text = done(&[
        "bench",
        "add:100",
        "--time",
        "2",
        "--dtype",
        "f64",
        "--no-peaks",
    ]);
    assert!(
        text.lines()
            .any(|l| l.starts_with("add:100") && l.contains("f64")),
        "{text}"
    );
    assert!(done(&["bench", "--list"]).contains("@resnet50"));
    let text = done(&["bench", "conv2d:1x4x9x9:4x3x3:p1", "--candidates"]);
    assert!(
        text.lines().filter(|l| l.contains("spread")).count() >= 2,
        "{text}"
    );
}

#[test]
fn what_was_tuned_is_in_the_store_and_not_measured_again() {
    let folder = Folder::new("tune");
    let store = folder.file("tune.jsonl");
    let words = [
        "tune",
        "conv2d:1x4x9x9:4x3x3:p1",
        "--store",
        &store,
        "--json",
    ];
    let kernels = |report: &Value| -> (usize, usize) {
        let kernels = report[0]["kernels"].as_array().expect("a list");
        let measured = kernels.iter().filter(|k| k["measured"] == true);
        (kernels.len(), measured.count())
    };
    let first = kernels(&json(&words));
    assert!(first.0 >= 1 && first.0 == first.1, "{first:?}");
    assert_eq!(kernels(&json(&words)), (first.0, 0));

    let cache = |words: &[&str]| done(&[&["cache", "--store", &store], words].concat());
    assert_eq!(cache(&["list"]).lines().count(), first.0);
    assert!(
        cache(&["show", "conv"]).contains("spread"),
        "{}",
        cache(&["show"])
    );
    assert!(cache(&["verify"]).contains("0 damaged"));
    let other = folder.file("other.jsonl");
    let merged = ["cache", "--store", &other, "--json", "merge", &store];
    assert_eq!(json(&merged)["added"], first.0);
    assert_eq!(json(&merged)["added"], 0);

    let text = std::fs::read_to_string(&store).expect("the store");
    let text = text.replacen("trials", "tria1s", 1);
    std::fs::write(&store, text).expect("the store");
    let damaged = kiln(&["cache", "--store", &store, "verify"]);
    assert_eq!(damaged.status.code(), Some(1));
    assert_eq!(
        json(&["cache", "--store", &other, "--json", "clear", "conv"])["removed"],
        first.0
    );
    assert!(!Path::new(&other).exists() || done(&["cache", "--store", &other, "list"]).is_empty());
}

#[test]
fn devices_and_completions_are_printed() {
    let devices = json(&["devices", "--json"]);
    assert_eq!(devices[0]["device"], "cpu");
    assert!(done(&["devices"]).contains("threads"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(done(&["completions", shell]).contains("kiln"), "{shell}");
    }
}

#[test]
fn mistakes_are_told_with_the_right_exit_code() {
    for (words, code, why) in [
        (&["bench", "matmull:1x2x3"][..], 1, "there is no op"),
        (&["bench", "conv2d:1x3x8x8:4x9x9"], 1, "conv2d"),
        (&["bench", "add:8", "--dtype", "i8"], 1, "--dtype takes"),
        (&["bench", "add:8", "--device", "tpu"], 1, "--device takes"),
        (&["bench", "add:8", "--time", "soon"], 2, "invalid value"),
        (
            &["bench", "add:8", "--csv", "/nowhere/b.csv", "--time", "1"],
            1,
            "nowhere",
        ),
        (&["cache", "merge", "/nowhere.jsonl"], 1, "nowhere"),
        (&["cache"], 2, "subcommand"),
        (&["bake"], 2, "unrecognized"),
        (&["tune", "--precision", "rough"], 2, "exact, default, fast"),
    ] {
        let out = kiln(words);
        let error = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{words:?}: {error}");
        assert!(error.contains(why), "{words:?}: {error}");
        assert!(!error.contains("panicked"), "{words:?}: {error}");
    }
}
