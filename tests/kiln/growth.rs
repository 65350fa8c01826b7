//! The time to record, compile, bind, run and drop grows with the size of a program about as the size does.
//! `benches/growth.rs` prints figures.

use kiln::{DType, Result, Tensor, Var, compile, no_grad, realize_all, stack};
use std::time::{Duration, Instant};

/// The time that this thread has run; on the clock where that is not known.
fn now(start: Instant) -> Duration {
    let on_processor = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok()
    };
    on_processor().map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// That four times the size takes less than half of what it would if the time grew with the square.
fn is_near_linear(size: usize, run: impl Fn(usize) -> Result<()>) -> Result<()> {
    let clock = Instant::now();
    let least = |n: usize| -> Result<Duration> {
        let times = (0..3).map(|_| {
            let start = now(clock);
            run(n)?;
            Ok(now(clock) - start)
        });
        let times = times.collect::<Result<Vec<Duration>>>()?;
        Ok(times.into_iter().min().unwrap_or_default())
    };
    run(size / 4)?;
    let (small, large) = (least(size)?, least(4 * size)?);
    assert!(
        large < small * 8,
        "{small:?} for {size}, {large:?} for four times as many"
    );
    Ok(())
}

#[test]
fn compiling_the_assignment_of_many_cells() -> Result<()> {
    is_near_linear(200, |n| {
        let cells = (0..n).map(|i| Var::new(&Tensor::full([3], i as f64, DType::F32)));
        let cells = cells.collect::<Result<Vec<Var>>>()?;
        realize_all()?;
        let step = compile(&[], |_| -> Result<Vec<Tensor>> {
            for (i, cell) in cells.iter().enumerate() {
                cell.assign(&(cell.get() * 0.5 + i as f64))?;
            }
            Ok(Vec::new())
        })?;
        step.run(&[])?;
        let last = cells[n - 1].get().to_vec::<f32>()?;
        assert_eq!(last, [1.5 * (n - 1) as f32; 3]);
        Ok(())
    })
}

#[test]
fn kernels_of_which_no_two_are_the_same() -> Result<()> {
    let x = Tensor::ones([64], DType::F32);
    x.realize()?;
    is_near_linear(200, |n| {
        let part = |x: &Tensor, i: usize| x.narrow(0, 0, (i % 60 + 1) as i64) * (i as f64 + 0.5);
        let step = compile(&[kiln::Spec::like(&x)?], |x| -> Vec<Tensor> {
            (0..n).map(|i| part(&x[0], i).sum((), false)).collect()
        })?;
        let y = step.run(&[&x])?;
        let last = (n - 1) as f32 + 0.5;
        assert_eq!(y[n - 1].item::<f32>()?, last * ((n - 1) % 60 + 1) as f32);
        Ok(())
    })
}

#[test]
fn taking_a_tensor_apart_and_putting_it_together() -> Result<()> {
    is_near_linear(500, |n| {
        let x = Tensor::arange(0, 4 * n as i64, 1).reshape([n as i64, 4]);
        x.realize()?;
        let y = no_grad(|| stack(&x.unbind(0).iter().collect::<Vec<_>>(), 0));
        assert_eq!(y.to_vec::<i64>()?, x.to_vec::<i64>()?);
        Ok(())
    })
}

/// More steps than one program holds.
#[test]
fn a_sum_of_many_losses() -> Result<()> {
    is_near_linear(1600, |n| {
        let w = Var::parameter(&Tensor::from([0.5f32, 1.5]))?;
        let mut total = Tensor::scalar(0.0f32);
        for i in 0..n {
            total = total + (w.get() * (i % 2) as f64).sum((), false);
        }
        total.backward()?;
        let gradient = w.grad().map(|g| g.to_vec::<f32>());
        assert_eq!(gradient.transpose()?, Some(vec![(n / 2) as f32; 2]));
        assert_eq!(total.item::<f32>()?, n as f32);
        Ok(())
    })
}
