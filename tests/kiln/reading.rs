//! Lazy reads: kept values, poisoned tensors, long chains.

use crate::{assert_reference, matrix, vector};
use kiln::{DType, ErrorKind, Tensor, realize_all};

#[test]
fn nothing_runs_until_a_value_is_asked_for() {
    let y = matrix(3, 4).exp().sum([1]);
    assert!(!y.is_realized());
    y.realize().unwrap();
    assert!(y.is_realized());
}

#[test]
fn a_read_keeps_held_intermediates_that_reach_memory() {
    let product = matrix(5, 7).matmul(matrix(7, 3));
    let total = product.exp().sum([0, 1]);
    total.realize().unwrap();
    // Kept or recomputed, it has the right value.
    assert_reference(&product);
}

#[test]
fn dropping_a_long_chain_does_not_overflow_the_stack() {
    let mut x = vector(&[1.0]);
    for _ in 0..200_000 {
        x = x.neg();
    }
    drop(x);
}

#[test]
fn a_long_recording_realises_itself() {
    let mut x = vector(&[0.0]);
    for _ in 0..20_000 {
        x = &x + 1.0;
    }
    assert_eq!(x.item::<f32>().unwrap(), 20_000.0);
}

/// As results of one program, they would take a kernel each.
#[test]
fn a_long_recording_leaves_views_of_computed_values_alone() {
    let x = Tensor::arange(0, 10_000, 1).to_dtype(DType::F32);
    x.realize().unwrap();
    let mut rows = x.reshape([5_000, 2]).unbind(0);
    let first = &x + 1.0;
    let mut last = first.clone();
    for _ in 0..10_000 {
        last = &last + 1.0;
    }
    assert!(first.is_realized());
    assert!(rows.iter().all(|row| !row.is_realized()));
    assert_eq!(last.i(3).item::<f32>().unwrap(), 10_004.0);
    assert_eq!(rows[4_999].to_vec::<f32>().unwrap(), [9998.0, 9999.0]);
    rows.truncate(3);
    realize_all().unwrap();
    assert!(rows.iter().all(Tensor::is_realized));
}

#[test]
fn everything_a_thread_holds_can_be_realised() {
    let (a, b) = (vector(&[1.0]) + 1.0, vector(&[2.0]) * 4.0);
    realize_all().unwrap();
    assert!(a.is_realized() && b.is_realized());
}

#[test]
fn a_run_can_be_cancelled_and_nothing_is_lost() {
    let w = kiln::Var::new(vector(&[1.0, 2.0])).unwrap();
    let step = kiln::compile(kiln::Spec::new(DType::F32, 2), |x| {
        w.add_(&x).unwrap();
        vec![w.get().exp()]
    })
    .unwrap();
    let (x, y) = (vector(&[1.0, 1.0]), w.get() * 3.0);
    let cancel = kiln::Cancel::new();
    cancel.cancel();
    cancel.watch(|| {
        assert_eq!(y.realize().unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(step.run(&x).unwrap_err().kind(), ErrorKind::Cancelled);
    });
    assert_eq!(y.to_vec::<f32>().unwrap(), [3.0, 6.0]);
    assert_eq!(w.get().to_vec::<f32>().unwrap(), [1.0, 2.0]);
    step.run(&x).unwrap();
    assert_eq!(w.get().to_vec::<f32>().unwrap(), [2.0, 3.0]);
}

#[test]
fn the_first_error_is_carried_to_every_read() {
    let bad = matrix(2, 3).matmul(matrix(2, 3));
    let later = (bad.exp() + 1.0).sum([0]);
    let error = later.error().unwrap();
    assert_eq!(error.op(), "matmul");
    assert_eq!(error.kind(), ErrorKind::Op);
    assert!(later.shape().is_err());
    assert!(later.to_vec::<f32>().is_err());
    assert!(later.realize().is_err());
    assert!(kiln::Var::new(&later).is_err());
    assert!(format!("{later}").contains("matmul"));
}

#[test]
fn tensors_are_printed_as_in_pytorch() {
    assert_eq!(vector(&[1.0, 2.5]).to_string(), "tensor([1.0000, 2.5000])");
    let i = Tensor::arange(0, 4, 1).reshape([2, 2]);
    assert_eq!(i.to_string(), "tensor([[0, 1],\n        [2, 3]])");
    assert_eq!(Tensor::scalar(true).to_string(), "tensor(True)");
    assert_eq!(
        Tensor::zeros([0], DType::F64).to_string(),
        "tensor([], dtype=f64)"
    );
}

#[test]
fn several_threads_may_read_one_tensor() {
    let y = matrix(64, 64).matmul(matrix(64, 64)).exp().sum([1]);
    let want = kiln::evaluate_reference(&y)
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| crate::assert_close(&y.to_vec::<f32>().unwrap(), &want));
        }
    });
}

#[test]
fn what_a_plan_writes_anyway_is_kept() {
    let first = matrix(5, 7).matmul(matrix(7, 6));
    let second = first.matmul(matrix(6, 2));
    second.realize().unwrap();
    assert!(first.is_realized());
}

#[test]
fn many_recordings_that_meet_are_dropped_without_overflow() {
    let base = vector(&[1.0]);
    for forwards in [true, false] {
        let leaves: Vec<Tensor> = (0..3000).map(|_| &base * 2.0).collect();
        let mut sum = base.clone();
        for i in 0..leaves.len() {
            let at = if forwards { i } else { leaves.len() - 1 - i };
            sum = &sum + &leaves[at];
        }
        drop(leaves);
        assert_eq!(sum.item::<f32>().unwrap(), 6001.0);
    }
}
