//! Operations run once each and in the order of the program, whatever the compiler does with the work around them.

use crate::every;
use kiln_distributed::{ReduceOp, all_reduce, barrier, broadcast, rank};
use kiln_tensor::{CompileOptions, DType, Result, Spec, Tensor, compile, compile_with, scan};

#[test]
fn operations_that_nobody_reads_run_in_their_place() {
    every(2, |rank| {
        let x = Tensor::from([rank as f32]);
        // Only rank 0 reads the sum.
        let sum = all_reduce(&x, ReduceOp::Sum);
        if rank == 0 {
            assert_eq!(sum.to_vec::<f32>()?, [1.0]);
        }
        drop(sum);
        let product = all_reduce(&x + 1.0, ReduceOp::Product);
        assert_eq!(product.to_vec::<f32>()?, [2.0]);
        Ok(())
    });
}

#[test]
fn equal_operations_are_not_merged_and_unread_ones_are_not_dropped() {
    every(2, |_| {
        let f = compile(Spec::new(DType::F32, 4), |x| {
            let twice = all_reduce(&x, ReduceOp::Sum) + all_reduce(&x, ReduceOp::Sum);
            drop(broadcast(&x, 0));
            twice
        })?;
        for i in 0..3 {
            let x = Tensor::full([4], i as f64, DType::F32);
            assert_eq!(f.run(&x)?.to_vec::<f32>()?, [4.0 * i as f32; 4]);
        }
        let text = f.explain().to_string();
        assert!(text.matches("all_reduce").count() >= 2, "{text}");
        assert!(text.contains("broadcast"), "{text}");
        barrier()
    });
}

#[test]
fn ranks_that_compile_differently_issue_the_same_order() {
    // A random program of work and operations. Each rank fuses, reuses memory and reads as it likes.
    for seed in 0..12u64 {
        let sums = every(3, |rank| {
            let options = CompileOptions {
                fuse: rank != 1,
                memory_budget: (rank == 2).then_some(1 << 16),
                ..CompileOptions::default()
            };
            let f = compile_with(Spec::new(DType::F64, (5, 3)), &options, |x| {
                program(x, seed)
            });
            let x = Tensor::arange(0, 15, 1)
                .to_dtype(DType::F64)
                .reshape([5, 3])
                * 0.25;
            let compiled = f?.run(&x + rank as f64)?.to_vec::<f64>()?;
            let lazy = program(&x + rank as f64, seed);
            // Each rank reads something else first.
            if rank == 1 {
                lazy.sum(()).item::<f64>()?;
            }
            assert_eq!(lazy.to_vec::<f64>()?, compiled);
            Ok(compiled)
        });
        assert_eq!(sums[0], sums[1], "seed {seed}");
        assert_eq!(sums[0], sums[2], "seed {seed}");
    }
}

/// Values that depend on each other in many ways, so that their order is open but for the operations.
fn program(x: Tensor, seed: u64) -> Tensor {
    let mut values = vec![x];
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let mut draw = |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for _ in 0..14 {
        let (a, b) = (
            values[draw(values.len())].clone(),
            values[draw(values.len())].clone(),
        );
        values.push(match draw(6) {
            0 => all_reduce(&a, ReduceOp::Max),
            1 => all_reduce(&a * 0.5, ReduceOp::Sum) * 0.25,
            2 => broadcast(&a, draw(3)),
            3 => (a * 0.5 + b).tanh(),
            4 => a.matmul(b.t()).matmul(b).tanh(),
            _ => a.amax(1).reshape([5, 1]) - b * 0.5,
        });
    }
    let sum = values.iter().skip(1).fold(values[0].clone(), |s, v| s + v);
    all_reduce(sum, ReduceOp::Mean)
}

#[test]
fn the_reference_takes_part_too() {
    every(2, |rank| {
        let f = compile(Spec::new(DType::F32, 5), |x| {
            all_reduce((&x + 1.0).exp(), ReduceOp::Sum).log()
        })?;
        let x = Tensor::full([5], rank as f64, DType::F32);
        let checked = f.verify(&x)?;
        assert!(checked.is_right(), "{checked}");
        Ok(())
    });
}

#[test]
fn bodies_do_not_communicate() {
    every(1, |_| -> Result<()> {
        let x = Tensor::ones([3, 2], DType::F32);
        let sum = |c: Tensor, x: Tensor| (c + all_reduce(&x, ReduceOp::Sum), x);
        let (last, _) = scan(Tensor::zeros([2], DType::F32), &x, sum);
        let e = last.realize().unwrap_err().to_string();
        assert!(e.contains("can't communicate inside scan"), "{e}");
        assert_eq!(rank()?, 0);
        Ok(())
    });
}
