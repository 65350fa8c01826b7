//! PyTorch's training runs: first gradients, every loss, final weights and running statistics.

use kiln_goldens::training::{RUNS, differences};
use kiln_goldens::{Folder, Run};
use kiln_tensor::Device;

#[test]
fn runs_follow_pytorch() {
    let folder = Folder::training("runs").unwrap();
    for name in RUNS {
        let wrong = differences(&folder.path().join(name), Device::Cpu).unwrap();
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn the_schedule_is_the_one_that_was_used() {
    let folder = Folder::training("schedule").unwrap();
    let run = Run::load(&folder.path().join("cnn_adamw_cosine")).unwrap();
    let base = run.settings["hyper"]["lr"].as_f64().unwrap();
    let rates = run.rates(base).unwrap();
    let listed = run.settings["lrs"].as_array().unwrap();
    assert_eq!(rates.len(), listed.len());
    for (a, b) in rates.iter().zip(listed) {
        assert!((a - b.as_f64().unwrap()).abs() <= 1e-15, "{a} is not {b}");
    }
}
