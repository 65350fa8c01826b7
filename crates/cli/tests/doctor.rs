//! The report on a machine, on one without a GPU and one with emulated GPUs.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

const KILN: &str = env!("CARGO_BIN_EXE_kiln");

/// The command with these variables set, and without those of this process that matter.
fn command(words: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(KILN);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["KILN_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_"]
            .iter()
            .any(|p| name.starts_with(p))
        {
            command.env_remove(name);
        }
    }
    command.args(words).envs(variables.iter().copied());
    command
}

fn text(output: Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn run(words: &[&str], variables: &[(&str, &str)]) -> String {
    text(
        command(words, variables)
            .output()
            .expect("the command runs"),
    )
}

fn json(variables: &[(&str, &str)]) -> Value {
    serde_json::from_str(&run(&["doctor", "--json"], variables)).expect("JSON")
}

/// Variables by which the command finds emulated GPUs.
fn emulated(driver: &str) -> Vec<(&str, &str)> {
    vec![("KILN_CUDA_DRIVER", driver), ("KILN_NVML", driver)]
}

#[test]
fn absent_libraries_are_values() {
    let nowhere = [
        ("KILN_CUDA_DRIVER", "/nowhere/libcuda.so"),
        ("KILN_NVML", "/nowhere"),
    ];
    let report = json(&nowhere);
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["devices"].as_array().unwrap().len(), 1);
    assert_eq!(report["devices"][0]["device"], "cpu");
    assert!(
        report["no_gpu"]
            .as_str()
            .unwrap()
            .contains("/nowhere/libcuda.so: no such file")
    );
    let names: Vec<_> = report["libraries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| &l["name"])
        .collect();
    assert_eq!(
        names,
        [
            "driver", "NVRTC", "NVML", "cuBLAS", "cuDNN", "NCCL", "cuBLASLt"
        ]
    );
    for library in report["libraries"].as_array().unwrap() {
        assert!(
            library["version"].is_string() != library["missing"].is_string(),
            "{library}"
        );
    }
    assert!(
        report["libraries"][0]["missing"].is_string()
            && report["libraries"][2]["missing"].is_string()
    );
    assert_eq!(report["environment"]["KILN_NVML"], "/nowhere");
    assert!(report["memory"]["limit"].as_u64() > Some(1 << 20));
    let shown = run(&["doctor"], &nowhere);
    for part in [
        "kiln ",
        "cpu ",
        "level: ",
        "threads ",
        "memory ",
        "no GPU ",
        "cuDNN ",
        "KILN_NVML=/nowhere",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}

#[test]
fn emulated_gpus_are_reported_with_their_load() {
    let driver = kiln_fake_cuda::library().display().to_string();
    let mut variables = emulated(&driver);
    variables.extend([
        ("KILN_FAKE_CUDA_DEVICES", "2"),
        ("KILN_FAKE_CUDA_MEMORY", "3221225472"),
        ("KILN_NCCL", &driver),
        ("KILN_CUBLASLT", &driver),
        ("KILN_STORE_SECRET", "hidden"),
    ]);
    let report = json(&variables);
    let gpu = &report["devices"][2];
    assert_eq!(gpu["device"], "cuda:1");
    assert_eq!(gpu["gpu"]["arch"], serde_json::json!([9, 0]));
    assert_eq!(gpu["memory"], 3u64 << 30);
    assert!(gpu["free"].as_u64().unwrap() <= 3 << 30);
    let load = ["utilization", "temperature", "power"].map(|n| gpu[n].as_u64());
    assert_eq!(load, [Some(41), Some(51), Some(100_001)]);
    assert_eq!(report["libraries"][0]["version"], "580.00, CUDA 13.0");
    assert_eq!(report["libraries"][2]["version"], "13.580.00");
    assert_eq!(report["libraries"][5]["version"], "2.28.0");
    assert_eq!(report["libraries"][6]["version"], "13.0.2");
    assert!(!report.to_string().contains("hidden"));
    assert!(report["no_gpu"].is_null());
    let shown = run(&["doctor"], &variables);
    assert!(
        shown.contains("compute capability 9.0, 132 multiprocessors, 3.0 GiB"),
        "{shown}"
    );
    assert!(shown.contains("40% busy, 50 °C, 100 W"), "{shown}");
    // Without NVML the rest is told all the same.
    variables[1].1 = "/nowhere";
    let report = json(&variables);
    assert!(report["devices"][1]["utilization"].is_null());
    assert_eq!(report["libraries"][0]["version"], "CUDA 13.0");
}

#[test]
fn a_gpu_that_is_too_old_is_an_error_that_says_so() {
    let driver = kiln_fake_cuda::library().display().to_string();
    let mut variables = emulated(&driver);
    variables.push(("KILN_FAKE_CUDA_CAPABILITY", "75"));
    let why = "has compute capability 7.5; Kiln's kernels need 8.0 or newer (sm_80";
    let report = json(&variables);
    assert!(report["no_gpu"].as_str().unwrap().contains(why), "{report}");
    assert_eq!(report["least_capability"], serde_json::json!([8, 0]));
    let words = ["bench", "copy:8", "--device", "cuda:0", "--time", "1"];
    let output = command(&words, &variables)
        .output()
        .expect("the command runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && error.contains(why),
        "{error}"
    );
}

#[test]
fn the_number_of_threads_follows_the_environment() {
    let threads = |variables: &[(&str, &str)]| {
        let report = json(variables);
        let from = report["threads_from"].as_str().unwrap().to_string();
        (report["threads"].as_u64().unwrap(), from)
    };
    assert_eq!(
        threads(&[("OMP_NUM_THREADS", "3"), ("MKL_NUM_THREADS", "5")]),
        (3, "OMP_NUM_THREADS=3".into())
    );
    assert_eq!(
        threads(&[("MKL_NUM_THREADS", "5")]),
        (5, "MKL_NUM_THREADS=5".into())
    );
    let usual = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(threads(&[("OMP_NUM_THREADS", "many")]).0, usual);
    let devices = run(&["devices"], &[("OPENBLAS_NUM_THREADS", "7")]);
    assert!(devices.contains("7 threads"), "{devices}");
    // An affinity of one processor.
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", "0", KILN, "doctor", "--json"]);
    for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
        pinned.env_remove(name);
    }
    match pinned.output() {
        Ok(output) if output.status.success() => {
            let report: Value = serde_json::from_str(&text(output)).expect("JSON");
            assert_eq!(report["threads"], 1);
            if usual > 1 {
                let from = report["threads_from"].as_str().unwrap();
                assert!(from.starts_with("the CPU affinity, of "), "{from}");
            }
        }
        _ => eprintln!("skipped: there is no taskset, or no processor 0"),
    }
}

#[test]
fn devices_are_watched_until_the_reader_has_enough() {
    use std::io::{BufRead, BufReader};
    let mut command = command(
        &["devices", "--watch", "0"],
        &[("KILN_CUDA_DRIVER", "/nowhere")],
    );
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let cpus = lines
        .map_while(Result::ok)
        .filter(|line| line.starts_with("cpu"));
    assert_eq!(cpus.take(3).count(), 3);
    assert!(child.wait().expect("it ends").success());
}
