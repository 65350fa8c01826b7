//! Each operation, dtype and reduction beside a plain computation. `tests/mpi` has the same over processes.

use crate::every;
use kiln_distributed::{
    ReduceOp, all_gather, all_gather_object, all_reduce, all_to_all, barrier, broadcast,
    broadcast_object, gather, new_group, recv, reduce, reduce_scatter, send, world,
};
use kiln_tensor::{DType, Result, Tensor};

#[path = "../checks.rs"]
mod checks;

#[test]
fn every_operation_dtype_and_reduction_is_that_of_a_plain_computation() {
    for ranks in 1..=3 {
        every(ranks, |_| checks::all(&world()?));
    }
}

#[test]
fn groups_of_some_ranks_count_from_zero() {
    let sums = every(4, |rank| {
        let group = new_group(&[3, 1])?;
        let other = new_group(&[0, 1, 2])?;
        let x = Tensor::from([10i64 + rank as i64]);
        let mut found = Vec::new();
        if let Some(group) = &group {
            assert_eq!(group.rank(), usize::from(rank == 1));
            assert_eq!(group.ranks(), [3, 1]);
            found.extend(group.all_gather(&x).to_vec::<i64>()?);
        }
        if let Some(other) = &other {
            found.push(other.all_reduce(&x, ReduceOp::Sum).item::<i64>()?);
            checks::all(other)?;
        }
        Ok(found)
    });
    assert_eq!(sums, [vec![33], vec![13, 11, 33], vec![33], vec![13, 11]]);
}

#[test]
fn objects_go_from_rank_to_rank() {
    every(3, |rank| {
        let all = all_gather_object(&vec!["x".repeat(rank); rank])?;
        assert_eq!(all, [vec![], vec!["x"], vec!["xx", "xx"]]);
        let value = (rank == 2).then_some(("two".to_string(), [1.5]));
        assert_eq!(broadcast_object(value.as_ref(), 2)?, ("two".into(), [1.5]));
        let nothing: Option<&i32> = None;
        let e = broadcast_object(nothing, 0).unwrap_err().to_string();
        assert!(e.contains("rank 0, whose value it is, gave none"), "{e}");
        Ok(())
    });
}

#[test]
fn derivatives_are_those_of_the_sum_over_all_ranks() {
    // The loss of all ranks is the sum of each one's, w · y; the derivative of x is compared with that written out.
    type Op = fn(&Tensor) -> Tensor;
    type Derivative = fn(usize) -> Vec<f64>;
    let cases: [(Op, Derivative); 8] = [
        (|x| all_reduce(x, ReduceOp::Sum), |_| vec![111.0, 222.0]),
        (|x| all_reduce(x, ReduceOp::Mean), |_| vec![37.0, 74.0]),
        (
            |x| broadcast(x, 1),
            |r| match r {
                1 => vec![111.0, 222.0],
                _ => vec![0.0, 0.0],
            },
        ),
        // Each rank gets the gradient of the root's result.
        (|x| reduce(x, 2, ReduceOp::Sum), |_| vec![100.0, 200.0]),
        (all_gather_part, |_| vec![111.0, 222.0]),
        (
            |x| all_gather(x).narrow(0, 2, 2),
            |r| match r {
                1 => vec![111.0, 222.0],
                _ => vec![0.0, 0.0],
            },
        ),
        (
            |x| reduce_scatter(x.repeat([3]), ReduceOp::Sum),
            |_| vec![111.0, 222.0],
        ),
        (
            |x| all_to_all(x.repeat([3])).narrow(0, 0, 2),
            |r| match r {
                0 => vec![111.0, 222.0],
                _ => vec![0.0, 0.0],
            },
        ),
    ];
    fn all_gather_part(x: &Tensor) -> Tensor {
        all_gather(x).reshape([3, 2]).sum(0)
    }
    for (i, (op, expected)) in cases.into_iter().enumerate() {
        every(3, |rank| {
            let x = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
            let w = Tensor::from([1.0f64, 2.0]) * 10f64.powi(rank as i32);
            (op(&x) * w).sum(()).backward()?;
            let g = x.grad().map(|g| g.to_vec::<f64>()).transpose()?;
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
            let g = g.unwrap_or_default();
            let expected = expected(rank);
            assert!(
                g.iter().zip(&expected).all(close),
                "case {i}: {g:?} {expected:?}"
            );
            Ok(())
        });
    }
}

#[test]
fn what_has_no_derivative_says_so() {
    every(2, |rank| {
        let x = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
        let y = all_reduce(&x, ReduceOp::Max);
        assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
        let e = y.sum(()).backward().unwrap_err().to_string();
        assert!(e.contains("all_reduce(Max) has no derivative"), "{e}");
        let y = gather(&x, 0);
        assert_eq!(y.numel()?, if rank == 0 { 4 } else { 0 });
        barrier()
    });
}

#[test]
fn messages_wait_for_their_receivers() {
    every(2, |rank| {
        let other = 1 - rank;
        // Both send first.
        for n in [0, 1, 1000] {
            send(Tensor::full([n], rank as f64, DType::F64), other)?;
            send(Tensor::from(rank as i64), other)?;
        }
        for n in [0, 1, 1000] {
            let x = recv([n], DType::F64, other).to_vec::<f64>()?;
            assert_eq!(x, vec![other as f64; n as usize]);
            assert_eq!(recv((), DType::I64, other).item::<i64>()?, other as i64);
        }
        Ok(())
    });
}

#[test]
fn wrong_operands_are_errors_at_the_users_line() {
    every(2, |_| -> Result<()> {
        let x = Tensor::ones([3], DType::F32);
        let text = |t: Tensor| t.realize().unwrap_err().to_string();
        let e = text(reduce_scatter(&x, ReduceOp::Sum));
        assert!(
            e.contains("2 parts of equal size can't be made of the first dim of f32[3]"),
            "{e}"
        );
        assert!(e.contains("collectives.rs"), "{e}");
        assert!(text(broadcast(&x, 2)).contains("rank 2 is not one of the 2 ranks"));
        assert!(text(all_gather(x.sum(()))).contains("has no first dim"));
        let flags = x.gt(0.0);
        assert!(text(all_reduce(&flags, ReduceOp::Sum)).contains("Sum is not defined for bool"));
        let ints = x.to_dtype(DType::I32);
        assert!(text(all_reduce(&ints, ReduceOp::Mean)).contains("cast it to f32"));
        let bytes = x.to_dtype(DType::F8E4M3);
        assert!(text(all_reduce(&bytes, ReduceOp::Max)).contains("can only be stored"));
        Ok(())
    });
}
