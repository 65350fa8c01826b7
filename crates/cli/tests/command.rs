//! The command as a user calls it.

use kiln_compiler::tune::{Outcome, Record, Store, Trial};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// Runs the command in an environment without variables of Kiln's.
fn kiln(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    for name in ["KILN_TUNE", "KILN_TUNE_STORE", "KILN_PRECISION"] {
        command.env_remove(name);
    }
    command.args(words).output().expect("the command runs")
}

/// The output of the command, which must exit with 0.
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
    let folder = tempfile::tempdir().unwrap();
    let (csv, html) = (path_in(&folder, "b.csv"), path_in(&folder, "b.html"));
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
    for field in ["median_s", "gflop_per_s", "gb_per_s", "share_of_peak"] {
        assert!(results[1][field].as_f64() > Some(0.0), "{field}");
    }
    assert!(results[1]["spread"].as_f64() >= Some(0.0));
    let levels = kiln::Features::LEVELS.map(kiln::Features::name);
    let level = report["instructions"].as_str().unwrap_or_default();
    assert!(levels.contains(&level), "{report}");
    let (name, version) = (&report["name"], report["version"].as_str());
    assert!(name.as_str().is_some_and(|n| n.len() > 3 && n != "cpu"));
    assert_eq!(version, Some(env!("CARGO_PKG_VERSION")));
    // 2 m k n.
    assert_eq!(results[1]["flops"].as_f64(), Some(2.0 * 16.0 * 8.0 * 8.0));
    assert!(report["peaks"]["flops"]["f32"].as_f64() > Some(1e8));
    assert!(report["peaks"]["bandwidth"].as_f64() > Some(1e7));
    let lines = std::fs::read_to_string(csv).expect("a CSV file");
    assert_eq!(lines.lines().count(), 1 + expected.len());
    let head = lines.lines().next().unwrap_or_default();
    assert!(head.ends_with("device,instructions,threads,kiln"), "{head}");
    let first = lines.lines().nth(1).unwrap_or_default();
    assert!(first.contains(level), "{first}");
    let page = std::fs::read_to_string(html).expect("a page");
    assert_eq!(page.matches("<svg").count(), 2);
    assert!(expected.iter().all(|name| page.contains(name)));
    assert!(page.contains(level) && page.contains(env!("CARGO_PKG_VERSION")));
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
        // Only on the CPU have the products several algorithms.
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
    let list = json(&["tune", "--list", "--json"]);
    let names = |part: &str| {
        let entries = list[part].as_array().expect("a list").iter();
        entries
            .filter_map(|e| e["name"].as_str())
            .collect::<Vec<_>>()
    };
    assert!(names("groups").contains(&"@mobilenet"));
    assert!(names("models").contains(&"lstm"));
    assert!(names("ops").iter().all(|n| n.contains(':')));
}

#[test]
fn every_op_is_measured() {
    let ops = [
        "conv2d_grad:2x4x9x7:6x3x3:p1:g2",
        "conv1d:2x4x63:6x9:p4:g2",
        "conv1d_grad:2x4x63:6x9:p4:g2",
        "conv3d:1x2x5x4x3:4x3x1x2",
        "conv3d_grad:1x2x5x4x3:4x3x1x2",
        "max_pool2d:1x3x9x8",
        "gather:7x5",
        "sort:3x17",
        "cumsum:3x17",
    ];
    let options = ["--time", "1", "--rounds", "1", "--no-peaks", "--json"];
    let report = json(&[&["bench"], &ops[..], &options].concat());
    let results = report["results"].as_array().expect("a list");
    assert_eq!(results.len(), ops.len());
    // Two products of the size of the convolution's: 2 x 2 channels x 9 taps for each of 2 x 6 x 63 results.
    let product = 2.0 * 18.0 * 756.0;
    assert!(
        results[0]["flops"].as_f64() >= Some(2.0 * product),
        "{report}"
    );
    // The same product over one axis, once and for both gradients.
    assert!(results[1]["flops"].as_f64() >= Some(product), "{report}");
    assert!(
        results[2]["flops"].as_f64() >= Some(2.0 * product),
        "{report}"
    );
    // 2 channels x 6 taps for each of 4 x 24 results.
    assert!(
        results[3]["flops"].as_f64() >= Some(2.0 * 12.0 * 96.0),
        "{report}"
    );
    assert!(results.iter().all(|r| r["bytes"].as_f64() > Some(0.0)));
    let bad = kiln(&["bench", "conv2d_grad:1x3x8x8:4x3x3:g2"]);
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn shares_are_of_peaks_of_the_same_dtype() {
    let of = |dtype: &str| {
        let sizes = ["bench", "matmul:64x64x64", "lstm"];
        let options = ["--time", "2", "--rounds", "1", "--json", "--dtype"];
        json(&[&sizes[..], &options, &[dtype]].concat())
    };
    let double = of("f64");
    assert!(double["peaks"]["flops"]["f64"].as_f64() > Some(1e8));
    assert!(double["peaks"]["flops"]["f32"].is_null());
    // On a CPU no peak of bf16 is measured, so there is no share of it.
    let half = of("bf16");
    assert!(half["peaks"]["flops"]["bf16"].is_null());
    for i in 0..2 {
        assert!(double["results"][i]["share_of_peak"].as_f64() > Some(0.0));
        assert!(half["results"][i]["share_of_peak"].is_null());
    }
}

#[test]
fn every_candidate_is_reported_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, html) = (path_in(&folder, "c.csv"), path_in(&folder, "c.html"));
    let words = ["bench", "matmul:33x65x47", "--candidates", "--json"];
    let options = [
        "--time", "5", "--rounds", "3", "--csv", &csv, "--html", &html,
    ];
    let report = json(&[&words[..], &options].concat());
    let results = report["results"].as_array().expect("a list");
    assert!(results.len() >= 2, "{report}");
    let mut names = Vec::new();
    for r in results {
        names.push(r["algorithms"][0].as_str().expect("a name"));
        assert!(r["times"].as_array().is_some_and(|t| t.len() >= 3), "{r}");
        assert!(r["flops"].as_f64() >= Some(2.0 * 33.0 * 65.0 * 47.0), "{r}");
        assert!(r["gflop_per_s"].as_f64() > Some(0.0), "{r}");
        assert!(r["share_of_peak"].as_f64() > Some(0.0), "{r}");
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), results.len(), "{names:?}");
    let lines = std::fs::read_to_string(csv).expect("a CSV file");
    assert_eq!(lines.lines().count(), 1 + results.len());
    let page = std::fs::read_to_string(html).expect("a page");
    assert!(names.iter().all(|name| page.contains(name)));
    let one = done(&["bench", "copy:8", "--candidates", "--no-peaks"]);
    assert!(one.contains("one way"), "{one}");
}

#[test]
fn what_was_tuned_is_in_the_store_and_not_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = path_in(&folder, "tune.jsonl");
    let words = [
        "tune",
        "conv2d:1x4x9x9:4x3x3:p1",
        "--store",
        &store,
        "--json",
    ];
    let kernels = |report: &Value| -> (usize, usize) {
        let choices = report[0]["choices"].as_array().expect("a list");
        let measured = choices.iter().filter(|k| k["measured"] == true);
        assert!(choices.iter().all(|c| c["what"] == "kernel"), "{report}");
        assert_eq!(report[0]["unmeasured"], 0);
        (choices.len(), measured.count())
    };
    let first = kernels(&json(&words));
    assert!(first.0 >= 1 && first.0 == first.1, "{first:?}");
    assert_eq!(kernels(&json(&words)), (first.0, 0));

    let records = first.0;
    let cache = |words: &[&str]| done(&[&["cache", "--store", &store], words].concat());
    assert_eq!(cache(&["list"]).lines().count(), records);
    assert_eq!(cache(&["list", "conv"]).lines().count(), records);
    assert_eq!(cache(&["list", "no such key"]), "");
    let shown = cache(&["show", "conv"]);
    let dated = shown.contains(" UTC; chosen: ") && shown.contains("measured 20");
    assert!(shown.contains("spread") && dated, "{shown}");
    assert!(cache(&["verify"]).contains("0 damaged"));
    let other = path_in(&folder, "other.jsonl");
    let merged = ["cache", "--store", &other, "--json", "merge", &store];
    assert_eq!(json(&merged)[0]["added"], records);
    assert_eq!(json(&merged)[0]["added"], 0);

    let text = std::fs::read_to_string(&store).expect("the store");
    let text = text.replacen("trials", "tria1s", 1);
    std::fs::write(&store, text).expect("the store");
    let damaged = kiln(&["cache", "--store", &store, "--json", "verify"]);
    assert_eq!(damaged.status.code(), Some(1));
    let damaged: Value = serde_json::from_slice(&damaged.stdout).expect("JSON");
    assert_eq!(damaged["damaged_lines"][0]["line"], 1);
    assert_eq!(damaged["damaged_lines"][0]["why"], "its checksum is wrong");
    // Commands that read or fill it report the damage too.
    for words in [
        &["cache", "list", "--store", &store][..],
        &["cache", "show", "--store", &store],
        &["tune", "copy:8", "--store", &store],
    ] {
        let error = String::from_utf8(kiln(words).stderr).expect("UTF-8");
        assert!(error.contains("warning"), "{words:?}: {error}");
    }
    let clear =
        |what| json(&["cache", "--store", &other, "--json", "clear", what])["removed"].clone();
    assert_eq!(clear("no such key"), 0);
    assert_eq!(clear("--all"), records);
    assert!(!Path::new(&other).exists() || done(&["cache", "--store", &other, "list"]).is_empty());
}

#[test]
fn the_store_names_the_candidate_that_programs_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder, "tune.jsonl");
    let trial = |name: &str, workspace, times: &[u64]| Trial {
        name: name.into(),
        workspace,
        same_bits: true,
        predicted: None,
        outcome: Outcome::Timed(times.to_vec()),
    };
    let put = |key: &str, trials: Vec<Trial>| {
        let record = Record::new(key.into(), trials);
        Store::new(&path).put(record).expect("the store");
    };
    // The fastest wins by less than the accuracy of measurement, and needs more memory.
    put(
        "tie",
        vec![trial("packed", 0, &[1003]), trial("direct", 64, &[1000])],
    );
    // The fastest is less accurate than allowed.
    put(
        "rough",
        vec![trial("packed", 0, &[900]), trial("winograd_4", 0, &[100])],
    );
    let list = done(&["cache", "list", "--store", &path]);
    for line in ["tie  packed 1.00 us", "rough  packed 0.90 us"] {
        assert!(list.lines().any(|l| l == line), "{list}");
    }
}

#[test]
fn what_failed_is_shown_and_tried_again_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let store = path_in(&folder, "tune.jsonl");
    let words = ["tune", "matmul:64x64x64", "--store", &store];
    done(&words);
    // In one record a candidate hung and the default failed.
    let opened = Store::new(&store);
    let mut record = opened.records().remove(0);
    assert!(record.trials.len() > 1 && record.failures() == 0);
    record.trials[0].outcome = Outcome::Failed("no memory".into());
    record.trials[1].outcome = Outcome::Hung(20_000);
    let key = record.key.clone();
    opened.put(record).expect("the store");
    let show = || done(&["cache", "show", "--store", &store]);
    let shown = show();
    for line in ["failed: no memory", "did not answer for 20000 ms"] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(shown.contains("2 failed or did not answer; kiln tune --retry tries them again"));
    // Without `--retry`, nothing is measured again.
    assert!(done(&words).contains(" 0 measured now"));
    assert_eq!(show(), shown);
    let text = done(&[&words[..], &["--retry"]].concat());
    assert!(text.contains("2 candidates are tried again"), "{text}");
    assert!(text.contains(" 1 measured now"), "{text}");
    let record = opened.get(&key).expect("it was measured");
    assert_eq!(record.failures(), 0);
    assert!(record.trials[0].time().is_some(), "{record:?}");
    assert!(!show().contains("--retry"));
    let text = done(&[&words[..], &["--retry"]].concat());
    assert!(text.contains("0 candidates are tried again") && text.contains(" 0 measured now"));
}

#[test]
fn what_the_budget_does_not_suffice_for_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = path_in(&folder, "tune.jsonl");
    let words = [
        "tune",
        "conv2d:1x4x9x9:4x3x3:p1",
        "--budget",
        "0",
        "--store",
        &store,
    ];
    let text = done(&words);
    assert!(
        text.contains("not measured, since the budget was spent"),
        "{text}"
    );
    let report = json(&[&words[..], &["--json"]].concat());
    let unmeasured = report[0]["choices"].as_array().map(Vec::len);
    assert!(
        unmeasured >= Some(1) && report[0]["unmeasured"].as_u64() == unmeasured.map(|n| n as u64)
    );
}

#[test]
fn a_store_that_is_none_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, garbage) = (path_in(&folder, "missing"), path_in(&folder, "garbage"));
    std::fs::write(&garbage, "no record").expect("a file");
    let (store, inside) = (path_in(&folder, "store"), format!("{garbage}/store"));
    for words in [
        &["cache", "verify", "--store", &missing][..],
        &["cache", "verify", "--store", &path_in(&folder, "")],
        &["cache", "verify", "--store", &garbage],
        &["cache", "list", "--store", &path_in(&folder, "")],
        &["cache", "merge", &garbage, "--store", &store],
        &["cache", "merge", &path_in(&folder, ""), "--store", &store],
        &["tune", "copy:8", "--store", &inside],
    ] {
        let out = kiln(words);
        assert_eq!(out.status.code(), Some(1), "{words:?}");
        assert!(out.stderr.len() + out.stdout.len() > 20, "{words:?}");
    }
    // A store that does not exist yet is not a damaged one.
    let list = kiln(&["cache", "list", "--store", &missing]);
    assert!(list.status.success() && list.stdout.is_empty() && !list.stderr.is_empty());
}

#[test]
fn whoever_stops_reading_ends_a_command_quietly() {
    for words in [
        &["bench", "copy:8", "--time", "1", "--no-peaks"][..],
        &["bench", "--list"],
        &["devices"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command
            .args(words)
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        drop(child.stdout.take());
        let out = child.wait_with_output().expect("the command ends");
        let error = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(0), "{words:?}: {error}");
        assert!(
            !error.contains("panicked") && !error.contains("pipe"),
            "{error}"
        );
    }
}

#[test]
fn devices_and_completions_are_printed() {
    let devices = json(&["devices", "--json"]);
    assert_eq!(devices["devices"][0]["device"], "cpu");
    let gpus = devices["devices"].as_array().map_or(0, Vec::len) - 1;
    assert_eq!(devices["no_gpu"].is_string(), gpus == 0, "{devices}");
    assert!(!done(&["devices"]).contains(".rs:"));
    assert!(done(&["devices"]).contains("threads"));
    for shell in ["bash", "zsh", "fish"] {
        let text = done(&["completions", shell]);
        let options = ["kiln", "bf16", "exact"];
        let workloads = ["@mobilenet", "lstm", "softmax"];
        let words = options.iter().chain(&workloads);
        // fish does not get the words that stand without an option's name.
        for word in words.take(if shell == "fish" { 3 } else { 6 }) {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn mistakes_are_told_with_the_right_exit_code() {
    for (words, code, why) in [
        (&["bench", "matmull:1x2x3"][..], 2, "there is no op"),
        (
            &["bench", "matmul:512..64x8x8"],
            2,
            "no size from 512 to 64",
        ),
        (&["bench", "conv2d:1x3x8x8:4x9x9"], 2, "conv2d"),
        (
            &["bench", "add:8", "--dtype", "i8"],
            2,
            "f32, f64, f16, bf16",
        ),
        (&["bench", "add:8", "--device", "tpu"], 2, "cpu or cuda:N"),
        (&["bench", "add:8", "--device", "cuda:99"], 1, "kiln: "),
        (&["bench", "add:8", "--time", "soon"], 2, "invalid value"),
        (&["cache", "clear"], 2, "--all"),
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
        assert!(!error.contains(".rs:"), "{words:?}: {error}");
    }
    assert!(done(&["--help"]).contains("Exit codes"));
    for words in [
        &["--help"][..],
        &["devices", "--help"],
        &["cache", "merge", "--help"],
    ] {
        assert!(done(words).contains("Example"), "{words:?}");
    }
}
