//! Programs of many parts, of sizes at which work that grows with the square would be felt, give what small ones
//! do. `benches/growth.rs` prints how times grow.

use kiln::{DType, Result, Tensor, Var, compile, no_grad, realize_all, stack};

/// Runs for a small and a large size.
fn at_sizes(size: usize, run: impl Fn(usize) -> Result<()>) -> Result<()> {
    run(size / 4)?;
    run(4 * size)
}

#[test]
fn compiling_the_assignment_of_many_cells() -> Result<()> {
    at_sizes(200, |n| {
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
    at_sizes(200, |n| {
        let part = |x: &Tensor, i: usize| x.narrow(0, 0, (i % 60 + 1) as i64) * (i as f64 + 0.5);
        let step = compile(&[kiln::Spec::like(&x)?], |x| -> Vec<Tensor> {
            (0..n).map(|i| part(&x[0], i).sum(())).collect()
        })?;
        let y = step.run(&[&x])?;
        let last = (n - 1) as f32 + 0.5;
        assert_eq!(y[n - 1].item::<f32>()?, last * ((n - 1) % 60 + 1) as f32);
        Ok(())
    })
}

#[test]
fn taking_a_tensor_apart_and_putting_it_together() -> Result<()> {
    at_sizes(500, |n| {
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
    at_sizes(1600, |n| {
        let w = Var::parameter(&Tensor::from([0.5f32, 1.5]))?;
        let mut total = Tensor::scalar(0.0f32);
        for i in 0..n {
            total = total + (w.get() * (i % 2) as f64).sum(());
        }
        total.backward()?;
        let gradient = w.grad().map(|g| g.to_vec::<f32>());
        assert_eq!(gradient.transpose()?, Some(vec![(n / 2) as f32; 2]));
        assert_eq!(total.item::<f32>()?, n as f32);
        Ok(())
    })
}
