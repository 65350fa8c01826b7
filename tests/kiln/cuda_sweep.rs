//! The suites of single ops on the emulated GPU, in a process of their own: `KILN_FULL_SWEEP=1` runs them.

use std::process::Command;

#[test]
fn single_ops_give_on_a_gpu_what_the_reference_gives() {
    if std::env::var_os("KILN_FULL_SWEEP").is_none_or(|v| v != "1") {
        println!("skipped: KILN_FULL_SWEEP=1 runs it");
        return;
    }
    if crate::cuda::device().is_none() {
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .arg("ops::")
        .env("KILN_TEST_DEVICE", "cuda")
        .env("KILN_CUDA_DRIVER", kiln_fake_cuda::library())
        .status()
        .unwrap();
    assert!(status.success(), "see the output above");
}
