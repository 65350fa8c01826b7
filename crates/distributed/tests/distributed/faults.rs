//! Ranks that are late, end, or do something else: an error on the others that names rank and operation.

use kiln_distributed::{
    Init, ReduceOp, all_reduce, barrier, broadcast, destroy_process_group, init_process_group,
    init_process_group_with, is_initialized, new_group, rank, recv, run_in_threads_with, send,
    world_size,
};
use kiln_tensor::{DType, Result, Tensor};
use std::time::{Duration, Instant};

/// The errors of ranks, within a second.
fn errors(ranks: usize, f: impl Fn(usize) -> Result<()> + Sync) -> Vec<String> {
    let start = Instant::now();
    let results = run_in_threads_with(ranks, Duration::from_millis(300), f);
    assert!(start.elapsed() < Duration::from_secs(20));
    let text = |r: Result<()>| r.err().map(|e| e.to_string()).unwrap_or_default();
    results.into_iter().map(text).collect()
}

#[test]
fn a_rank_that_has_ended_is_named_at_once() {
    let found = errors(3, |rank| match rank {
        1 => Ok(()),
        _ => all_reduce(Tensor::ones([2], DType::F32), ReduceOp::Sum)
            .realize()
            .map(drop),
    });
    for rank in [0, 2] {
        let e = &found[rank];
        assert!(
            e.contains("all_reduce(Sum) of 2 elements of f32: rank 1 of 3 has ended"),
            "{e}"
        );
        assert!(e.contains("faults.rs"), "{e}");
    }
}

/// A receive that another error of its run ends takes its message, so the next one gets the next.
#[test]
fn a_receive_that_is_given_up_takes_no_other_message() {
    let found = errors(2, |rank| {
        if rank == 1 {
            send(Tensor::from([1.0f32]), 0)?;
            return send(Tensor::from([2.0f32]), 0);
        }
        let first = recv([1], DType::F32, 1);
        let wrong = Tensor::ones([2], DType::F32).index_select(0, Tensor::from([7i64]));
        assert!((first + wrong).realize().is_err());
        assert_eq!(recv([1], DType::F32, 1).to_vec::<f32>()?, [2.0]);
        Ok(())
    });
    assert_eq!(found, ["", ""]);
}

#[test]
fn a_late_rank_is_named() {
    let found = errors(2, |rank| {
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(600));
        }
        all_reduce(Tensor::ones([2], DType::F32), ReduceOp::Sum)
            .realize()
            .map(drop)
    });
    for e in found {
        assert!(e.contains("rank 1 of 2 did not come within 0.3 s"), "{e}");
    }
}

#[test]
fn different_shapes_and_operations_are_errors_on_every_rank() {
    let found = errors(3, |rank| {
        let x = Tensor::ones([2 + rank / 2], DType::F32);
        let wrong = all_reduce(x, ReduceOp::Sum).realize().map(drop);
        // All ranks know, and can go on.
        barrier()?;
        wrong
    });
    assert!(
        found[2].contains("rank 2 calls all_reduce(Sum) of 3 elements of f32"),
        "{}",
        found[2]
    );
    assert!(
        found[0].contains("rank 2 calls all_reduce(Sum) of 3 elements"),
        "{}",
        found[0]
    );
    let found = errors(2, |rank| {
        let x = Tensor::ones([2], DType::F32);
        let y = match rank {
            0 => all_reduce(x, ReduceOp::Sum),
            _ => broadcast(x, 0),
        };
        y.realize().map(drop)
    });
    for e in found {
        assert!(
            e.contains("rank 1 calls broadcast(rank 0)") || e.contains("rank 0 calls"),
            "{e}"
        );
    }
    let found = errors(2, |rank| new_group(&[rank]).map(drop));
    assert!(found[0].contains("rank 1 makes [1]"), "{}", found[0]);
    let found = errors(2, |rank| match rank {
        0 => recv([3], DType::F32, 1).realize().map(drop),
        _ => kiln_distributed::send(Tensor::ones([4], DType::F32), 0),
    });
    assert!(found[0].contains("sends another value"), "{}", found[0]);
}

#[test]
fn a_process_alone_needs_no_library() -> Result<()> {
    let e = rank().unwrap_err().to_string();
    assert!(e.contains("call init_process_group first"), "{e}");
    let x = Tensor::ones([2], DType::F32);
    assert!(all_reduce(&x, ReduceOp::Sum).realize().is_err());
    for (backend, expected) in [
        ("gloo", "there is no backend `gloo`; on CPUs, use `mpi`"),
        ("tcp", "there is no backend `tcp`"),
    ] {
        let e = init_process_group(backend).unwrap_err().to_string();
        assert!(e.contains(expected), "{e}");
    }
    for (backend, method, expected) in [
        (
            "nccl",
            "udp://host:1",
            "use env://, tcp://host:port or file:///path",
        ),
        ("mpi", "env://", "leave `init_method` out"),
    ] {
        let how = Init::new().rank(0).world_size(1).init_method(method);
        let e = init_process_group_with(backend, how)
            .unwrap_err()
            .to_string();
        assert!(e.contains(expected), "{e}");
    }
    let e = init_process_group_with("mpi", Init::new().world_size(2))
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("world_size is 1 by the launcher, and 2 is asked for"),
        "{e}"
    );
    init_process_group("mpi")?;
    assert!(
        init_process_group("mpi")
            .unwrap_err()
            .to_string()
            .contains("exists already")
    );
    assert_eq!((rank()?, world_size()?), (0, 1));
    assert_eq!(all_reduce(&x, ReduceOp::Mean).to_vec::<f32>()?, [1.0, 1.0]);
    destroy_process_group()?;
    assert!(rank().is_err());
    Ok(())
}

#[test]
fn a_timeout_may_be_of_any_length_and_a_thread_may_end_its_world() {
    let results = run_in_threads_with(2, Duration::MAX, |_| {
        let sum = all_reduce(Tensor::ones([2], DType::F32), ReduceOp::Sum).to_vec::<f32>()?;
        destroy_process_group()?;
        assert!(!is_initialized());
        Ok(sum)
    });
    for sum in results {
        assert_eq!(sum.unwrap(), [2.0, 2.0]);
    }
}
