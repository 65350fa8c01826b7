//! Many runs at once.

use super::build::*;
use super::executor::model;
use kiln_plan::Plan;
use kiln_runtime::{Buffer, Executable};

#[test]
fn runs_from_many_threads_do_not_disturb_each_other() {
    let exe = Executable::new(model(&Plan::symbol(0), false)).unwrap();
    let shared = |n: usize| Buffer::from_slice(&vec![1.0f32; n], &[n as i64]).unwrap();
    std::thread::scope(|scope| {
        for t in 0..6 {
            let (exe, shared) = (&exe, &shared);
            scope.spawn(move || {
                let mut r = Random(t + 1);
                for _ in 0..60 {
                    let n = [5usize, 3000, 200_000][r.below(3) as usize];
                    let value = r.below(100) as f32;
                    let x = Buffer::from_slice(&vec![value; n], &[n as i64]).unwrap();
                    let mut given = [x, shared(n), shared(n)];
                    let out = exe.run(&mut given, &[false, false, true]).unwrap();
                    let y = out[0].as_slice::<f32>().unwrap();
                    assert!(y.iter().all(|y| *y == 5.0 * value));
                    let s = out[1].as_slice::<f32>().unwrap();
                    assert!(s.iter().all(|s| *s == 1.0 + 4.0 * value));
                }
            });
        }
    });
}

#[test]
fn preparing_happens_once_for_waiting_runs() {
    let exe = Executable::new(model(&4i64.into(), true)).unwrap();
    let t = |x: f32| Buffer::from_slice(&[x; 4], &[4]).unwrap();
    let (x, w, s) = (t(1.0), t(2.0), t(3.0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| exe.run_shared(&[x.clone(), w.clone(), s.clone()]).unwrap());
        }
    });
    assert_eq!(exe.stats().prepares, 1);
}
