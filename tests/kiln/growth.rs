//! Programs of many parts give the results of small ones, at sizes where quadratic work would be noticeable.
//! `benches/growth.rs` prints the growth of times.

use kiln::{DType, Result, Tensor, Var, compile, no_grad, realize_all, stack};

/// Runs for a small and a large size.
fn at_sizes(size: usize, run: impl Fn(usize) -> Result<()>) -> Result<()> {
    run(size / 4)?;
    run(4 * size)
}

#[test]
fn compiling_the_assignment_of_many_cells() -> Result<()> {
    at_sizes(200, |n| {
        let cells = (0..n).map(|i| Var::new(Tensor::full([3], i as f64, DType::F32)));
        let cells = cells.collect::<Result<Vec<Var>>>()?;
        realize_all()?;
        let step = compile((), |()| -> Result<Vec<Tensor>> {
            for (i, cell) in cells.iter().enumerate() {
                cell.assign(&(cell.get() * 0.5 + i as f64))?;
            }
            Ok(Vec::new())
        })?;
        step.run(())?;
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
        let step = compile(&x, |x| -> Vec<Tensor> {
            (0..n).map(|i| part(&x, i).sum(())).collect()
        })?;
        let y = step.run(&x)?;
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
        let again = |x: &Tensor| stack(&x.unbind(0).iter().collect::<Vec<_>>(), 0);
        let y = no_grad(|| again(&x));
        assert_eq!(y.to_vec::<i64>()?, x.to_vec::<i64>()?);
        let step = compile(&x, |x| again(&x))?;
        assert_eq!(step.run(&x)?.to_vec::<i64>()?, x.to_vec::<i64>()?);
        // In another order, the result is not a view of x.
        let turned = |x: &Tensor| stack(&x.unbind(0).iter().rev().collect::<Vec<_>>(), 0);
        let step = compile(&x, |x| turned(&x))?;
        let y = step.run(&x)?.flip(0);
        assert_eq!(y.to_vec::<i64>()?, x.to_vec::<i64>()?);
        Ok(())
    })
}

#[test]
fn gradients_of_parts_that_are_put_together() -> Result<()> {
    at_sizes(500, |n| {
        let x = Tensor::arange(0, 4 * n as i64, 1).reshape([n as i64, 4]);
        let x = Var::parameter(x.to_dtype(DType::F32) * 0.5)?;
        realize_all()?;
        let y = stack(&x.unbind(0).iter().collect::<Vec<_>>(), 0);
        y.square().sum(()).backward()?;
        let gradient = x.grad().map(|g| g.to_vec::<f32>()).transpose()?;
        let expected = (0..4 * n).map(|i| i as f32);
        assert_eq!(gradient, Some(expected.collect()));
        // Parts with gaps between them, and parts that overlap, of a whole dim but for its ends.
        x.zero_grad();
        let ranges = (1..n - 6).step_by(3).map(|i| (i, 2));
        let ranges: Vec<(usize, usize)> = ranges.chain((2..n - 6).map(|i| (i, 5))).collect();
        let parts = ranges
            .iter()
            .map(|(start, len)| x.narrow(0, *start as i64, *len as i64));
        kiln::cat(parts, 0).sum(()).backward()?;
        let mut expected = vec![0.0; 4 * n];
        for (start, len) in ranges {
            expected[4 * start..4 * (start + len)]
                .iter_mut()
                .for_each(|g| *g += 1.0);
        }
        let gradient = x.grad().map(|g| g.to_vec::<f32>()).transpose()?;
        assert_eq!(gradient, Some(expected));
        Ok(())
    })
}

#[test]
fn putting_many_values_together() -> Result<()> {
    at_sizes(250, |n| {
        let value = |i: usize| Tensor::from_slice(&[i as f32, 1.0, -1.0], [3]);
        let parts: Vec<Tensor> = (0..n).map(value).collect();
        let y = kiln::cat(&parts.iter().collect::<Vec<_>>(), 0) * 2.0;
        let expected = (0..n).flat_map(|i| [2.0 * i as f32, 2.0, -2.0]);
        assert_eq!(y.to_vec::<f32>()?, expected.collect::<Vec<_>>());
        // The parts are concatenated, and the first one is computed in place.
        let y = stack(
            &parts
                .iter()
                .map(|x| x + 1.0)
                .collect::<Vec<_>>()
                .iter()
                .collect::<Vec<_>>(),
            1,
        );
        let rows = [1.0, 2.0, 0.0]
            .map(|row| (0..n).map(move |i| if row == 1.0 { i as f32 + 1.0 } else { row }));
        assert_eq!(
            y.to_vec::<f32>()?,
            rows.into_iter().flatten().collect::<Vec<_>>()
        );
        Ok(())
    })
}

#[test]
fn many_results_and_a_value_that_many_read() -> Result<()> {
    at_sizes(250, |n| {
        let w = Var::parameter(Tensor::from([2.0f32, 3.0]))?;
        let read = w.get();
        let parts: Vec<Tensor> = (0..n).map(|i| &read * (i % 3) as f64).collect();
        let whole = kiln::cat(&parts.iter().collect::<Vec<_>>(), 0);
        whole.sum(()).backward()?;
        let gradient = w.grad().map(|g| g.to_vec::<f32>()).transpose()?;
        let sum: usize = (0..n).map(|i| i % 3).sum();
        assert_eq!(gradient, Some(vec![sum as f32; 2]));
        let split = whole.split(2, 0);
        kiln::realize_all()?;
        assert_eq!(split[n - 1].to_vec::<f32>()?, parts[n - 1].to_vec::<f32>()?);
        Ok(())
    })
}

/// More steps than one program holds.
#[test]
fn a_sum_of_many_losses() -> Result<()> {
    at_sizes(1600, |n| {
        let w = Var::parameter(Tensor::from([0.5f32, 1.5]))?;
        let mut total = Tensor::scalar(0.0f32);
        for i in 0..n {
            total += (w.get() * (i % 2) as f64).sum(());
        }
        total.backward()?;
        let gradient = w.grad().map(|g| g.to_vec::<f32>());
        assert_eq!(gradient.transpose()?, Some(vec![(n / 2) as f32; 2]));
        assert_eq!(total.item::<f32>()?, n as f32);
        Ok(())
    })
}
