//! The tests of the standard, and of onnxruntime's own operators.

use crate::results::{assert_right_on, folders};
use kiln_goldens::Folder;
use kiln_tensor::Device;
use kiln_testkit::sweep::Sweep;
use std::path::PathBuf;

/// The cases of all suites of the standard.
fn standard(folder: &Folder) -> Vec<PathBuf> {
    let suites = folders(folder.path());
    suites.iter().flat_map(|suite| folders(suite)).collect()
}

/// All 1,389 tests give the standard's results. Programs for the engine run them, whatever their shapes come from.
#[test]
fn the_standards_tests_pass() {
    let folder = Folder::onnx("standard").unwrap();
    let cases = standard(&folder);
    assert_eq!(cases.len(), 1389);
    assert_right_on(Device::Cpu, &cases);
}

/// The tests give the standard's results on the emulated driver too, and these lie on the device: 1 of 40 and one of
/// sizes alone, or all with `KILN_FULL_SWEEP=1`.
#[test]
fn the_standards_tests_on_the_emulated_driver() {
    kiln_runtime::cuda::set_driver(kiln_fake_cuda::library());
    if let Err(e) = kiln_runtime::cuda::Nvrtc::get() {
        return println!("skipped: {e}");
    }
    let device = Device::cuda(0).unwrap();
    let folder = Folder::onnx("emulated").unwrap();
    let cases = standard(&folder);
    let cases: Vec<PathBuf> = match Sweep::wanted() {
        Some(sweep) => cases[sweep.share(cases.len())].to_vec(),
        None => {
            let share = cases.iter().skip(17).step_by(40);
            // Its result is computed from sizes alone.
            let shape = cases.iter().filter(|case| case.ends_with("test_shape"));
            share.chain(shape).cloned().collect()
        }
    };
    assert_right_on(device, &cases);
}

/// Operators of `com.microsoft`, products and convolutions of dequantised values, loops, text and machine learning give
/// onnxruntime's results.
#[test]
fn onnxruntimes_operators() {
    let folder = Folder::onnx_contrib("contrib").unwrap();
    let cases = folders(folder.path());
    assert_eq!(cases.len(), 88);
    assert_right_on(Device::Cpu, &cases);
}

/// The body of a loop of 10,000 turns is recorded once, whether the turns are counted or a condition ends them.
#[test]
fn a_loop_is_recorded_once() {
    let folder = Folder::onnx_contrib("loops").unwrap();
    for name in ["loop_counted", "loop_ended", "loop_trips_given"] {
        let model = kiln_onnx::load(folder.path().join(name).join("model.onnx")).unwrap();
        let compiled = model.compile(model.specs(&[]).unwrap()).unwrap();
        let text = compiled.explain().to_string();
        assert!(text.lines().count() < 100, "{text}");
    }
}
