//! The suites of single ops on the emulated GPU, in a process of their own, in the full sweep.

use kiln_testkit::sweep::Sweep;
use std::process::Command;

#[test]
fn single_ops_give_on_a_gpu_what_the_reference_gives() {
    let Some(sweep) = Sweep::wanted() else {
        println!("skipped: KILN_FULL_SWEEP=1 runs it");
        return;
    };
    if crate::cuda::device().is_none() {
        return;
    }
    let tests = Command::new(std::env::current_exe().unwrap())
        .args(["ops::", "--list"])
        .output()
        .unwrap();
    let tests = String::from_utf8(tests.stdout).unwrap();
    let tests: Vec<&str> = tests
        .lines()
        .filter_map(|l| l.strip_suffix(": test"))
        .collect();
    assert!(!tests.is_empty());
    let share = &tests[sweep.share(tests.len())];
    if share.is_empty() {
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .arg("--exact")
        .args(share)
        .env("KILN_TEST_DEVICE", "cuda")
        .env("KILN_CUDA_DRIVER", kiln_fake_cuda::library())
        .status()
        .unwrap();
    assert!(status.success(), "see the output above");
}
