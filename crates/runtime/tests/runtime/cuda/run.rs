//! Running on a device.

use super::build::*;
use kiln_base::{DType, Dim, Gpu};
use kiln_plan::{Allocation, Plan, Role, SiteKind};
use kiln_runtime::{Buffer, Error, Executable};
use std::sync::Arc;

fn scalar(x: f32) -> Buffer {
    Buffer::from_slice(&[x], &[]).unwrap()
}

#[test]
fn chains_run_at_any_size_and_again_as_graphs() {
    let Some(device) = device() else { return };
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let scale = scalar(1.5).to_gpu(&device).unwrap();
    for graphs in [true, false] {
        device.set_graphs(graphs);
        for n in [2, 63, 64, 65, 1000] {
            for round in 0..5 {
                let x: Vec<f32> = (0..n).map(|i| (i + round) as f32).collect();
                let inputs = [numbers(&device, &x).unwrap(), scale.clone()];
                let out = exe.run_shared(&inputs).unwrap();
                let want: Vec<f32> = x.iter().map(|x| (x * 3.0 + 1.0).powi(2)).collect();
                assert_eq!(out[0].to_vec::<f32>().unwrap(), want, "{n} {round}");
            }
        }
    }
    device.set_graphs(true);
    assert_eq!(exe.stats().prepares, 1);
    assert_eq!(exe.stats().kernels, 1 + 2 * 5 * 5 * 3);
    // Another parameter runs *prepare* again.
    let inputs = [numbers(&device, &[1.0, 2.0]).unwrap(), scalar(0.5)];
    let out = exe.run_shared(&inputs).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [4.0, 9.0]);
    assert_eq!(exe.stats().prepares, 2);
}

#[test]
fn an_index_out_of_range_is_named_and_leaves_donated_memory_alone() {
    let Some(device) = device() else { return };
    let exe = Executable::on_gpu(take_and_update(), &device).unwrap();
    let x = numbers(&device, &[10.0, 20.0, 30.0, 40.0]).unwrap();
    let index = |values: [i64; 3]| {
        Buffer::from_slice(&values, &[3])
            .unwrap()
            .to_gpu(&device)
            .unwrap()
    };
    let mut inputs = [x, index([0, 7, 1])];
    for _ in 0..3 {
        let out = exe.run(&mut inputs, &[true]).unwrap();
        let want = Error::Data {
            site: 0,
            op: "gather".into(),
            kind: SiteKind::IndexOutOfRange,
            node: 42,
            index: 7,
            bound: 4,
        };
        // Every dependent of the run gets the error, every time.
        for o in &out {
            assert_eq!(o.to_vec::<f32>().unwrap_err(), want);
            assert_eq!(o.settled().unwrap_err(), want);
        }
        let next = [out[1].clone(), index([0, 1, 2])];
        assert_eq!(exe.run_shared(&next).unwrap_err(), want);
        drop(next);
        assert!(inputs[0].is_empty());
        inputs[0] = out[1].clone().after_failure();
        assert_eq!(inputs[0].to_vec::<f32>().unwrap(), [10.0, 20.0, 30.0, 40.0]);
    }
    for round in 0..4 {
        inputs[1] = index([0, 3, 1]);
        let out = exe.run(&mut inputs, &[true]).unwrap();
        let r = round as f32;
        assert_eq!(
            out[0].to_vec::<f32>().unwrap(),
            [10.0 + r, 40.0 + r, 20.0 + r]
        );
        assert!(inputs[0].is_empty(), "its memory was taken");
        inputs[0] = out[1].clone();
        assert_eq!(out[1].to_vec::<f32>().unwrap()[0], 11.0 + r);
        drop(out);
    }
}

#[test]
fn a_run_with_an_error_is_not_waited_for_and_not_forgotten() {
    let Some(device) = device() else { return };
    let exe = Executable::on_gpu(take_and_update(), &device).unwrap();
    let x = numbers(&device, &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let index = Buffer::from_slice(&[0i64, -2, 1], &[3]).unwrap();
    let out = exe
        .run_shared(&[x, index.to_gpu(&device).unwrap()])
        .unwrap();
    let outcome = out[0].outcome().unwrap().clone();
    drop(out);
    let open = device.outcomes();
    let found = open.iter().find(|o| std::ptr::eq(&***o, &*outcome));
    let error = found.unwrap().wait().unwrap_err();
    assert!(matches!(
        error,
        Error::Data {
            index: -2,
            bound: 4,
            ..
        }
    ));
    assert!(outcome.reported());
    let open = device.outcomes();
    assert!(open.iter().all(|o| !std::ptr::eq(&**o, &*outcome)));
}

#[test]
fn graphs_are_given_addresses_that_never_came_before() {
    let Some(device) = device() else { return };
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let scale = scalar(1.0).to_gpu(&device).unwrap();
    let mut held = Vec::new();
    for round in 0..12 {
        let x = round as f32;
        let inputs = [numbers(&device, &[x; 70]).unwrap(), scale.clone()];
        let out = exe.run_shared(&inputs).unwrap().remove(0);
        held.push((inputs, out));
        // Every third run has the addresses of the first.
        if round % 3 == 2 {
            held.truncate(1);
        }
        for (i, (inputs, out)) in held.iter().enumerate() {
            let x = inputs[0].to_vec::<f32>().unwrap()[0];
            let want = (2.0 * x + 1.0).powi(2);
            assert_eq!(out.to_vec::<f32>().unwrap(), [want; 70], "{round} {i}");
        }
    }
}

/// Tensor maps hold the addresses of their run, in launches as in graphs.
#[test]
fn tensor_maps_are_encoded_for_each_run() {
    let Some(device) = device() else { return };
    for (im2col, rows) in [(false, 2), (false, 8), (false, 21), (true, 8), (true, 21)] {
        let exe = Executable::on_gpu(twice_by_boxes(im2col), &device).unwrap();
        let mut held = Vec::new();
        for round in 0..8 {
            let x: Vec<f32> = (0..rows * 32)
                .map(|i| (i * 7 % 900 + round) as f32)
                .collect();
            let want: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
            let input = Buffer::from_slice(&x, &[rows, 32]).unwrap();
            let inputs = [input.to_gpu(&device).unwrap()];
            let out = exe.run_shared(&inputs).unwrap().remove(0);
            held.push((inputs, out, want));
            // Every third run has the addresses of the first.
            if round % 3 == 2 {
                held.truncate(1);
            }
            for (_, out, want) in &held {
                assert_eq!(&out.to_vec::<f32>().unwrap(), want, "{rows} {round}");
            }
        }
    }
}

#[test]
fn threads_share_a_device() {
    let Some(device) = device() else { return };
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let x = numbers(&device, &[1.0; 300]).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (exe, device, x) = (&exe, &device, &x);
            scope.spawn(move || {
                let scale = scalar(t as f32).to_gpu(device).unwrap();
                let mut at = x.clone();
                for _ in 0..6 {
                    // The result of one run is the input of the next.
                    at = exe.run_shared(&[at, scale.clone()]).unwrap().remove(0);
                }
                let mut want = 1.0f32;
                for _ in 0..6 {
                    want = (want * 2.0 * t as f32 + 1.0).powi(2);
                }
                assert!(at.to_vec::<f32>().unwrap().iter().all(|v| *v == want));
            });
        }
    });
}

#[test]
fn buffers_copy_both_ways_and_say_where_they_are() {
    let Some(device) = device() else { return };
    for len in [0usize, 1, 5, 3 << 20] {
        let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let host = Buffer::from_slice(&values, &[len as i64]).unwrap();
        let there = host.to_gpu(&device).unwrap();
        assert_eq!(there.to_vec::<f32>().unwrap(), values);
        assert_eq!(there.gpu().unwrap().ordinal(), 0);
        let error = there.bytes().unwrap_err().to_string();
        assert_eq!(error, "the values are on cuda:0; copy them with to_host()");
    }
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let x = Buffer::from_slice(&[1.0f32; 3], &[3]).unwrap();
    let error = exe.run_shared(&[x, scalar(1.0)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input 0 is on cpu, the plan runs on cuda:0"
    );
    let error = Executable::new(chain())
        .unwrap()
        .run_shared(&[Buffer::from_slice(&[1.0f32; 3], &[3]).unwrap(), scalar(1.0)]);
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("GPU kernel in a plan for the CPU")
    );
}

#[test]
fn steps_are_timed_by_the_device() {
    let Some(device) = device() else { return };
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let inputs = [numbers(&device, &[1.0; 5000]).unwrap(), scalar(1.0)];
    exe.run_shared(&inputs).unwrap();
    exe.profile(true);
    for _ in 0..3 {
        let out = exe.run_shared(&inputs).unwrap();
        assert_eq!(out[0].to_vec::<f32>().unwrap()[4999], 9.0);
    }
    let times = exe.step_times();
    let seen: Vec<(usize, &str, u64)> = times
        .iter()
        .map(|t| (t.step, t.kernel.as_str(), t.runs))
        .collect();
    assert_eq!(
        seen,
        [(0, "scaled", 3), (1, "plus_one", 3), (2, "square", 3)]
    );
    assert!(times.iter().all(|t| t.total >= t.least * 3));
    exe.profile(false);
    exe.run_shared(&inputs).unwrap();
    assert!(exe.step_times().is_empty());
}

#[test]
fn numbers_of_the_host_go_along() {
    let Some(device) = device() else { return };
    let exe = Executable::on_gpu(chain(), &device).unwrap();
    let x = numbers(&device, &[1.0, 2.0, 3.0]).unwrap();
    for scale in [1.0, 2.0, 0.5] {
        let out = exe.run_shared(&[x.clone(), scalar(scale)]).unwrap();
        let want = [1.0f32, 2.0, 3.0].map(|x| (2.0 * scale * x + 1.0).powi(2));
        assert_eq!(out[0].to_vec::<f32>().unwrap(), want);
    }
}

/// Each input counts the runs on it.
#[test]
fn replays_run_as_often_as_they_say() {
    let Some(device) = device() else { return };
    let (n, f) = (Plan::symbol(0), DType::F32);
    let mut plan = chain();
    plan.kernels[1] = kernel(
        "scaled_and_counted",
        "float* count = (float*)x0; count[i] += 1.0f; x2[i] = count[i] * x1[0];",
        &[f, f, f],
        &n,
        0,
    );
    let exe = Arc::new(Executable::on_gpu(plan, &device).unwrap());
    let scale = scalar(1.0).to_gpu(&device).unwrap();
    let set = |start: usize, n: usize| {
        let x: Vec<f32> = (0..n).map(|i| (start + i) as f32).collect();
        vec![numbers(&device, &x).unwrap(), scale.clone()]
    };
    let sets: Vec<Vec<Buffer>> = (0..5).map(|s| set(s * 1000, 70)).collect();
    let replays = exe.replays(&sets, 2).unwrap();
    let counts = || -> Vec<f32> {
        let first = |s: &Vec<Buffer>| s[0].to_vec::<f32>().unwrap()[0];
        let passed = sets.iter().enumerate();
        passed.map(|(i, s)| first(s) - (i * 1000) as f32).collect()
    };
    assert_eq!(counts(), [0.0; 5], "captured, not run");
    let before = exe.stats();
    // Graphs of two, two and one run.
    for turn in 0..4 {
        assert!(replays.time(turn).unwrap().as_nanos() > 0);
    }
    assert_eq!(counts(), [2.0, 2.0, 1.0, 1.0, 1.0]);
    let after = exe.stats();
    assert_eq!(after.runs - before.runs, 7);
    assert_eq!(after.kernels - before.kernels, 7 * 3);
    let mixed = [set(0, 70), set(0, 71)];
    let e = exe.replays(&mixed, 2).err().unwrap().to_string();
    assert!(e.contains("equal sizes"), "{e}");
    // The plan runs as before, and the graphs outlive the executable.
    let out = exe.run_shared(&sets[0]).unwrap();
    drop(exe);
    replays.time(2).unwrap();
    // The write to an input is not declared, so reading the input does not wait for the run.
    out[0].to_vec::<f32>().unwrap();
    assert_eq!(counts(), [3.0, 2.0, 1.0, 1.0, 2.0]);
}

#[test]
fn kernels_of_one_name_and_other_text_are_not_taken_for_each_other() {
    let Some(device) = device() else { return };
    let n = Dim::Const(3);
    let plan = |body: &str| {
        let f = DType::F32;
        Plan {
            inputs: vec![input(f, std::slice::from_ref(&n), Role::Data, 0)],
            outputs: vec![output(f, std::slice::from_ref(&n), 1, None)],
            buffers: vec![
                buffer(f, &n, Allocation::Input),
                buffer(f, &n, Allocation::Output),
            ],
            kernels: vec![kernel("same_name", body, &[f, f], &n, 0)],
            run: vec![step(0, &[0, 1], &[])],
            commit: 1,
            ..Plan::default()
        }
    };
    let x = [numbers(&device, &[1.0, 2.0, 3.0]).unwrap()];
    // Both are held, so both are loaded.
    let one = Executable::on_gpu(plan("x1[i] = x0[i] + 1.0f;"), &device).unwrap();
    let other = Executable::on_gpu(plan("x1[i] = x0[i] * 2.0f;"), &device).unwrap();
    let of = |exe: &Executable| exe.run_shared(&x).unwrap()[0].to_vec::<f32>().unwrap();
    assert_eq!(of(&one), [2.0, 3.0, 4.0]);
    assert_eq!(of(&other), [2.0, 4.0, 6.0]);
    let machine = device.machine();
    let gpu = machine.gpu().unwrap();
    assert!(gpu.driver.unwrap() >= (12, 0) && gpu.nvrtc.is_some());
    assert_eq!((gpu.name, gpu.arch), (device.name(), device.capability()));
    if device.is_emulated() {
        // Choices for an emulated GPU are those for the GPU that it emulates.
        let Gpu {
            name,
            arch,
            driver,
            nvrtc,
            ..
        } = *gpu;
        let like = Gpu {
            name,
            arch,
            driver,
            nvrtc,
            clusters: false,
            ..Gpu::H100
        };
        assert_eq!(*gpu, like);
    }
}
