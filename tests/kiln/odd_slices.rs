//! Loops on a GPU whose stacked values have slices of odd sizes: kernels read and write vectors of them.

use crate::cuda::device;
use crate::matrix;
use kiln::{
    DType, Device, PadMode, Scan, Tensor, Var, WhileLoop, cond, scan, scan_with, while_loop_with,
    with_seed,
};

const STEPS: usize = 7;

/// A dtype with the tolerance of its results, relative to the largest.
const FLOATS: [(DType, f64); 4] = [
    (DType::F32, 1e-5),
    (DType::F64, 1e-12),
    (DType::F16, 2e-2),
    (DType::BF16, 1e-1),
];

/// Values of a test on a device: random ones of the same seed for each.
fn random(shape: &[usize], dtype: DType, device: Device) -> Tensor {
    let x = with_seed(shape.iter().sum::<usize>() as u64, || {
        Tensor::randn(shape, DType::F64)
    });
    (x * 0.5).to_dtype(dtype).to(device)
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).to_vec::<f64>().unwrap()
}

/// Asserts that tensors computed on the GPU are those of the CPU.
fn assert_same(run: impl Fn(Device) -> Vec<Tensor>, tolerance: f64, what: &str) {
    let Some(gpu) = device() else { return };
    let [there, here] = [gpu, Device::Cpu].map(|d| {
        let results = run(d);
        results.iter().map(numbers).collect::<Vec<_>>()
    });
    for (i, (there, here)) in there.iter().zip(&here).enumerate() {
        let scale = here.iter().fold(1.0f64, |m, x| m.max(x.abs()));
        assert_eq!(there.len(), here.len(), "{what}: result {i}");
        for (a, b) in there.iter().zip(here) {
            let differs = (a - b).abs() > tolerance * scale;
            assert!(!differs, "{what}, result {i}: {there:?}\n{here:?}");
        }
    }
}

/// The gradients of a loss with respect to some parameters, and the loss.
fn with_gradients(loss: &Tensor, parameters: &[&Var]) -> Vec<Tensor> {
    loss.backward().unwrap();
    let gradients = parameters.iter().map(|p| p.grad().unwrap());
    [loss.clone()].into_iter().chain(gradients).collect()
}

#[test]
fn parts_of_slices_are_read_there() {
    let run = |device: Device| {
        let [s, xs] = [matrix(1, 4).reshape([4]), matrix(7, 5)].map(|x| x.to(device));
        let (s, ()) = scan(s, xs, |s, x| ((s + x.narrow(0, 0, 4)).tanh(), ()));
        vec![s]
    };
    assert_same(run, 1e-5, "parts");
}

#[test]
fn scans_read_write_and_carry_them_there() {
    for (dtype, tolerance) in FLOATS {
        for (size, part, reverse) in [(3, 2, false), (9, 8, true), (33, 32, false), (5, 4, true)] {
            let run = |device: Device| {
                let parameter =
                    |shape: &[usize]| Var::parameter(random(shape, dtype, device)).unwrap();
                let [s, c] = [parameter(&[part]), parameter(&[size])];
                let xs = parameter(&[STEPS, size]);
                let state = (s.get(), c.get());
                let options = Scan::new().reverse(reverse);
                let (last, (ys, parts, sums)) = scan_with(state, xs.get(), options, |(s, c), x| {
                    let near = &c * x.narrow(0, 0, part).sum(());
                    let s = (s + x.narrow(0, 0, part) * c.narrow(0, 0, part)).tanh();
                    let c = (near + &x).sigmoid();
                    let results = (&c * &x, x.narrow(0, 1, part) * &s, s.sum(()));
                    ((s, c), results)
                });
                let loss = last.0.square().sum(()) + last.1.sum(());
                let loss = loss + ys.square().sum(()) + parts.sum(()) + sums.square().sum(());
                let mut all = with_gradients(&loss, &[&s, &c, &xs]);
                all.extend([ys, parts, sums]);
                all
            };
            assert_same(run, tolerance, &format!("{dtype}, {size}"));
        }
    }
}

#[test]
fn bytes_are_read_written_and_carried_there() {
    let run = |device: Device| {
        let bytes: Vec<u8> = (0..STEPS as u8 * 21).map(|i| i.wrapping_mul(37)).collect();
        let xs = Tensor::from_slice(&bytes, [STEPS, 21]).to(device);
        let s = xs.i(0).narrow(0, 5, 16);
        let (s, (ys, flags)) = scan(s, xs, |s, x| {
            let s = s + x.narrow(0, 0, 16);
            let flags = x.narrow(0, 1, 16).lt(&s);
            (s, (&x * 3, flags))
        });
        vec![s, ys, flags]
    };
    assert_same(run, 0.0, "bytes");
}

/// Slices as operands of products, in either order, and as stacked results of them.
#[test]
fn odd_slices_are_multiplied_there() {
    for (dtype, tolerance) in FLOATS {
        for (rows, terms) in [(1, 3), (1, 12), (3, 40)] {
            let run = |device: Device| {
                let parameter =
                    |shape: &[usize]| Var::parameter(random(shape, dtype, device)).unwrap();
                let [xs, w] = [parameter(&[STEPS, rows, terms]), parameter(&[terms, 37])];
                let s = random(&[rows, 37], dtype, device);
                let (s, ys) = scan(s, xs.get(), |s, x| {
                    let y = x.matmul(w.get()) * 0.2;
                    ((s + &y).tanh(), y)
                });
                let loss = s.sum(()) + ys.square().sum(());
                let mut all = with_gradients(&loss, &[&xs, &w]);
                all.extend([s, ys]);
                all
            };
            assert_same(run, tolerance, &format!("{dtype}, {rows}x{terms}"));
        }
    }
}

/// The gradients of a loop with a condition read the states that it has saved, and so do those of a branch in a loop.
#[test]
fn conditions_keep_them_there() {
    for (dtype, tolerance) in FLOATS {
        let run = |device: Device| {
            let parameter = |shape: &[usize]| Var::parameter(random(shape, dtype, device)).unwrap();
            let [x, w] = [parameter(&[9]), parameter(&[8])];
            let y = while_loop_with(
                x.get(),
                WhileLoop::new().max_trips(6),
                |y| y.square().sum(()).lt(100.0),
                |y| {
                    let part = (y.narrow(0, 0, 8) * w.get()).tanh();
                    &y * 1.5 + part.pad([0, 1], PadMode::ZEROS)
                },
            );
            let xs = parameter(&[STEPS, 9]);
            let (last, all) = scan(y.narrow(0, 0, 8), xs.get(), |s, x| {
                let part = x.narrow(0, 0, 8);
                let s = cond(
                    part.sum(()).gt(0.0),
                    || (&s + &part * w.get()).sigmoid(),
                    || (&s - x.narrow(0, 1, 8)).tanh(),
                );
                (s.clone(), s.narrow(0, 0, 3))
            });
            let loss = last.square().sum(()) + all.sum(());
            with_gradients(&loss, &[&x, &w, &xs])
        };
        assert_same(run, tolerance, &format!("{dtype}"));
    }
}
