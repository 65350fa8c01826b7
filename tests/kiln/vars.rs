//! Cells: snapshots, swaps, commits, donation, failures, threads.

use crate::{assert_close, matrix, vector};
use kiln::{DType, ErrorKind, RunningStats, Spec, Tensor, Var, compile};
use std::sync::Arc;

#[test]
fn a_snapshot_never_changes() {
    let v = Var::new(vector(&[1.0, 2.0])).unwrap();
    let before = v.get();
    v.assign(&(v.get() + 10.0)).unwrap();
    assert_eq!(before.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [11.0, 12.0]);
    assert_eq!(before.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn a_lazy_tensor_of_the_old_value_survives_the_update() {
    let v = Var::new(vector(&[1.0, 2.0])).unwrap();
    let doubled = v.get() * 2.0;
    v.assign(&(v.get() + &doubled)).unwrap();
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [3.0, 6.0]);
    // Read after the old value may have been overwritten.
    assert_eq!(doubled.to_vec::<f32>().unwrap(), [2.0, 4.0]);
}

#[test]
fn an_unread_dependent_of_an_intermediate_survives_the_update() {
    let v = Var::new(vector(&[1.0, 2.0])).unwrap();
    let doubled = v.get() * 2.0;
    let later = doubled.exp();
    v.assign(&(v.get() + &doubled)).unwrap();
    drop(doubled);
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [3.0, 6.0]);
    assert_close(&later.to_vec::<f32>().unwrap(), &[2f32.exp(), 4f32.exp()]);
}

#[test]
fn swap_and_read_after_write() {
    let (a, b) = (
        Var::new(vector(&[1.0])).unwrap(),
        Var::new(vector(&[2.0])).unwrap(),
    );
    let (old_a, old_b) = (a.get() * 1.0, b.get() * 1.0);
    a.assign(&old_b).unwrap();
    b.assign(&old_a).unwrap();
    let seen = a.get() + 0.5;
    assert_eq!(seen.item::<f32>().unwrap(), 2.5);
    assert_eq!(a.get().item::<f32>().unwrap(), 2.0);
    assert_eq!(b.get().item::<f32>().unwrap(), 1.0);
}

#[test]
fn reading_a_value_commits_what_its_recording_assigned() {
    let running = Var::new(Tensor::zeros([2], DType::F32)).unwrap();
    let x = matrix(3, 2);
    let mean = x.mean([0]);
    running
        .assign(&(running.get() * 0.9 + &mean * 0.1))
        .unwrap();
    let y = &x - &mean;
    assert!(!running.get().is_realized());
    y.realize().unwrap();
    assert!(running.get().is_realized());
    let want: Vec<f32> = mean
        .to_vec::<f32>()
        .unwrap()
        .iter()
        .map(|m| m * 0.1)
        .collect();
    assert_close(&running.get().to_vec::<f32>().unwrap(), &want);
}

#[test]
fn an_unrelated_read_commits_nothing() {
    let v = Var::new(vector(&[1.0])).unwrap();
    v.assign(&(v.get() + 1.0)).unwrap();
    (vector(&[5.0]) * 2.0).realize().unwrap();
    assert!(!v.get().is_realized());
    assert_eq!(v.get().item::<f32>().unwrap(), 2.0);
}

#[test]
fn an_assignment_must_fit_and_a_refused_one_changes_nothing() {
    let v = Var::new(vector(&[1.0, 2.0])).unwrap();
    for wrong in [
        vector(&[1.0]),
        vector(&[1.0, 2.0]).to_dtype(DType::F64),
        vector(&[1.0, 2.0]).matmul(vector(&[1.0])),
    ] {
        v.assign(&wrong).unwrap_err();
    }
    assert_eq!(
        v.assign(vector(&[1.0])).unwrap_err().kind(),
        ErrorKind::Assign
    );
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn a_failed_run_leaves_the_last_value() {
    let table = vector(&[1.0, 2.0, 3.0]);
    let v = Var::new(vector(&[7.0])).unwrap();
    let bad = table.index_select(0, Tensor::from_slice(&[9i64], [1]));
    v.assign(&(v.get() + bad)).unwrap();
    let e = v.get().to_vec::<f32>().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    assert!(
        e.message().contains('9') && e.message().contains('3'),
        "{e}"
    );
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [7.0]);
    v.assign(&(v.get() + 1.0)).unwrap();
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [8.0]);
}

#[test]
fn updates_happen_in_place_when_nobody_else_holds_the_value() {
    let v = Var::new(Tensor::zeros([1 << 16], DType::F32)).unwrap();
    v.get().realize().unwrap();
    let step = compile((), |()| {
        v.assign(&(v.get() + 1.0))?;
        Ok::<_, kiln::Error>(Vec::<Tensor>::new())
    })
    .unwrap();
    assert_eq!(step.plan().outputs[0].donor, Some(0));
    for _ in 0..3 {
        step.run(()).unwrap();
    }
    let snapshot = v.get();
    step.run(()).unwrap();
    assert_eq!(snapshot.to_vec::<f32>().unwrap()[9], 3.0);
    assert_eq!(v.get().to_vec::<f32>().unwrap()[65535], 4.0);
}

#[test]
fn threads_may_share_cells() {
    let v = Var::new(vector(&[0.0; 64])).unwrap();
    let step = Arc::new(
        compile(Spec::new(DType::F32, [64]), |x| {
            v.assign(&(v.get() + &x))?;
            Ok::<_, kiln::Error>(Vec::<Tensor>::new())
        })
        .unwrap(),
    );
    std::thread::scope(|s| {
        for t in 0..4 {
            let (step, v) = (step.clone(), v.clone());
            s.spawn(move || {
                for _ in 0..25 {
                    step.run(vector(&[1.0; 64])).unwrap();
                    if t == 0 {
                        let seen = v.get().to_vec::<f32>().unwrap();
                        assert!(seen.iter().all(|x| *x == seen[0]), "a torn read");
                    }
                }
            });
        }
    });
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [100.0; 64]);
}

#[test]
fn batch_norm_keeps_running_statistics_flat() {
    let mean = Var::new(Tensor::zeros([3], DType::F32)).unwrap();
    let variance = Var::new(Tensor::ones([3], DType::F32)).unwrap();
    let mut expected = [0f64; 3];
    for step in 0..20 {
        let x = matrix(4, 3) * (step as f64 + 1.0);
        let y = x.batch_norm_with(
            RunningStats::new()
                .running_mean(&mean)
                .running_var(&variance)
                .training(true),
        );
        y.realize().unwrap();
        assert!(mean.get().is_realized() && variance.get().is_realized());
        let batch = x.mean([0]).to_vec::<f32>().unwrap();
        for (e, b) in expected.iter_mut().zip(batch) {
            *e = *e * 0.9 + b as f64 * 0.1;
        }
    }
    let got = mean.get().to_vec::<f32>().unwrap();
    assert_close(&got, &expected.map(|e| e as f32));
}

#[test]
fn runs_that_read_each_others_cells_do_not_deadlock() {
    let cells = || -> Vec<Var> {
        let cell = |_| Var::new(vector(&[1.0; 16])).unwrap();
        (0..20).map(cell).collect()
    };
    let (a, b) = (cells(), cells());
    let step = |written: &[Var], read: &[Var]| {
        compile((), |()| {
            for (w, r) in written.iter().zip(read) {
                w.assign(&(w.get() * 0.5 + r.get() * 0.5))?;
            }
            Ok::<_, kiln::Error>(Vec::<Tensor>::new())
        })
        .unwrap()
    };
    let (f, g) = (step(&a, &b), step(&b, &a));
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        for f in [&f, &g] {
            s.spawn(|| {
                for _ in 0..300 {
                    start.wait();
                    f.run(()).unwrap();
                }
            });
        }
    });
    assert_eq!(a[7].get().to_vec::<f32>().unwrap(), [1.0; 16]);
}

#[test]
fn a_cell_that_was_assigned_again_is_not_waited_for() {
    let (a, b) = (
        Var::new(vector(&[1.0])).unwrap(),
        Var::new(vector(&[2.0])).unwrap(),
    );
    let f = compile((), |()| {
        a.assign(&(a.get() + b.get()))?;
        Ok::<_, kiln::Error>(a.get())
    })
    .unwrap();
    let t = vector(&[3.0]) + 1.0;
    a.assign(&t).unwrap();
    b.assign(&(&t * 2.0)).unwrap();
    a.assign(vector(&[5.0])).unwrap();
    assert_eq!(f.run(()).unwrap().item::<f32>().unwrap(), 13.0);
}

#[test]
fn an_unread_failure_loses_no_update() {
    let one = Tensor::from_slice(&[1i64], [1]);
    let bad = one.floor_divide(Tensor::from_slice(&[0i64], [1]));
    let (m, w) = (
        Var::new(vector(&[0.0])).unwrap(),
        Var::new(vector(&[0.0])).unwrap(),
    );
    for _ in 0..3000 {
        m.assign(&(m.get() + 1.0)).unwrap();
        w.assign(&(w.get() + 1.0)).unwrap();
    }
    assert_eq!(m.get().item::<f32>().unwrap(), 3000.0);
    assert_eq!(w.get().item::<f32>().unwrap(), 3000.0);
    assert_eq!(bad.to_vec::<i64>().unwrap_err().kind(), ErrorKind::Data);
}

#[test]
fn a_held_dependent_may_be_read_while_another_thread_commits() {
    for _ in 0..200 {
        let v = Var::new(vector(&[1.0; 8])).unwrap();
        let d = v.get() * 2.0;
        v.assign(&(v.get() + &d)).unwrap();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                start.wait();
                assert_eq!(v.get().to_vec::<f32>().unwrap(), [3.0; 8]);
            });
            s.spawn(|| {
                start.wait();
                assert_eq!(d.to_vec::<f32>().unwrap(), [2.0; 8]);
            });
        });
    }
}
