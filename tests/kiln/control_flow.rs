//! Loops and branches on values: `scan` and `cond`. With `KILN_TEST_DEVICE=cuda` on a GPU.

use crate::{assert_close, assert_reference, cuda};
use kiln::{
    Conv, DType, Grad, GradCheck, Scan, Spec, Tensor, Var, compile, cond, grad_with,
    gradcheck_with, no_grad, scan, scan_with,
};

fn random(shape: &[usize], seed: u64) -> Tensor {
    kiln::with_seed(seed, || Tensor::randn(shape, DType::F64)).to(cuda::test_device())
}

#[track_caller]
fn vector(values: &[f32]) -> Tensor {
    crate::vector(values).to(cuda::test_device())
}

#[track_caller]
fn matrix(rows: usize, columns: usize) -> Tensor {
    crate::matrix(rows, columns).to(cuda::test_device())
}

#[track_caller]
fn indices(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape).to(cuda::test_device())
}

/// A recurrent network of one layer: `h' = tanh(x W + h U + b)`.
fn recurrent(h: &Tensor, xs: &Tensor, w: &Tensor, u: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    scan(h.clone(), xs.clone(), |h, x| {
        let h = (x.matmul(w) + h.matmul(u) + b).tanh();
        (h.clone(), h)
    })
}

/// The same network, unrolled step by step.
fn unrolled(h: &Tensor, xs: &Tensor, w: &Tensor, u: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let mut h = h.clone();
    let mut all = Vec::new();
    for t in 0..xs.shape().unwrap()[0] {
        h = (xs.select(0, t as i64).matmul(w) + h.matmul(u) + b).tanh();
        all.push(h.clone());
    }
    (h, kiln::stack(&all.iter().collect::<Vec<_>>(), 0))
}

fn parts(length: usize) -> Vec<Tensor> {
    let shapes: [&[usize]; 5] = [&[2, 3], &[length, 2, 4], &[4, 3], &[3, 3], &[3]];
    let each = shapes.iter().enumerate();
    each.map(|(i, s)| random(s, 10 + i as u64) * 0.5).collect()
}

/// A tensor to differentiate by, with its history if it has one.
fn tracked(x: &Tensor) -> Tensor {
    match x.requires_grad() {
        true => x.clone(),
        false => x.requires_grad_(true),
    }
}

/// The absolute and relative tolerance of gradients.
fn bounds(atol: f64, rtol: f64) -> GradCheck {
    GradCheck::new().atol(atol).rtol(rtol)
}

fn assert_equal(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape().unwrap(), b.shape().unwrap());
    let (a, b) = (a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap());
    for (x, y) in a.iter().zip(&b) {
        assert!((x - y).abs() <= 1e-12 * (1.0 + y.abs()), "{a:?}\n{b:?}");
    }
}

#[test]
fn a_scan_is_its_steps() {
    for length in [1, 2, 5] {
        let p = parts(length);
        let (last, all) = recurrent(&p[0], &p[1], &p[2], &p[3], &p[4]);
        let (wanted, each) = unrolled(&p[0], &p[1], &p[2], &p[3], &p[4]);
        assert_equal(&last, &wanted);
        assert_equal(&all, &each);
    }
}

#[test]
fn a_scan_of_no_steps_gives_its_start() {
    let xs = Tensor::zeros([0, 2], DType::F32);
    let (last, all) = scan(vector(&[1.0, 2.0]), xs, |h, x| (&h + &x, &h * 2.0));
    assert_eq!(last.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(all.shape().unwrap(), [0, 2]);
}

#[test]
fn states_results_and_slices_may_be_nested() {
    let xs = (vector(&[1.0, 2.0, 3.0]), matrix(3, 2));
    let init = (
        Tensor::full((), 0.0, DType::F32),
        [matrix(1, 2), matrix(1, 2)],
    );
    let ((count, [a, b]), rows) = scan(init, xs, |(count, [a, b]), (x, row)| {
        // The carried tensors exchange places at every step.
        let next = (count + &x, [b, &a + &row]);
        (next, vec![row * x])
    });
    assert_eq!(count.item::<f32>().unwrap(), 6.0);
    let m = |r: usize| matrix(3, 2).i(r as i64).unsqueeze(0);
    let wanted = matrix(1, 2) + m(1);
    assert_close(
        &a.to_vec::<f32>().unwrap(),
        &wanted.to_vec::<f32>().unwrap(),
    );
    let wanted = matrix(1, 2) + m(0) + m(2);
    assert_close(
        &b.to_vec::<f32>().unwrap(),
        &wanted.to_vec::<f32>().unwrap(),
    );
    assert_eq!(rows[0].shape().unwrap(), [3, 2]);
    assert_reference(&rows[0]);
}

#[test]
fn a_reversed_scan_begins_at_the_end_and_lengths_stand_alone() {
    let reverse = Scan::new().reverse(true);
    let zero = || Tensor::full((), 0.0, DType::F32);
    let (_, sums) = scan_with(zero(), vector(&[1.0, 2.0, 4.0]), reverse, |s, x| {
        let s = s + x;
        (s.clone(), s)
    });
    assert_eq!(sums.to_vec::<f32>().unwrap(), [7.0, 6.0, 4.0]);
    let ten = Scan::new().length(10);
    let (doubled, ()) = scan_with(zero() + 1.0, (), ten, |x, ()| (x * 2.0, ()));
    assert_eq!(doubled.item::<f32>().unwrap(), 1024.0);
}

#[test]
fn gradients_flow_through_time_once_and_twice() {
    let p = parts(4);
    let run = |x: Vec<Tensor>| {
        let (last, all) = recurrent(&x[0], &x[1], &x[2], &x[3], &x[4]);
        (all.square().sum(()) + last.sin().sum(())) * 0.5
    };
    gradcheck_with(run, &p, bounds(1e-7, 1e-6)).unwrap();
    let once = |x: Vec<Tensor>| {
        let x: Vec<Tensor> = x.iter().map(tracked).collect();
        let grads = grad_with(run(x.clone()), &x, Grad::new().create_graph(true)).unwrap();
        let sum = |g: &Tensor| g.square().sum(());
        grads.iter().map(sum).reduce(|a, b| a + b).unwrap()
    };
    gradcheck_with(once, &p, bounds(1e-6, 1e-5)).unwrap();
}

#[test]
fn gradients_are_those_of_the_steps() {
    let grads = |run: fn(&Tensor, &Tensor, &Tensor, &Tensor, &Tensor) -> (Tensor, Tensor),
                 read: bool| {
        let p: Vec<Tensor> = parts(5).iter().map(|t| t.requires_grad_(true)).collect();
        let (last, all) = run(&p[0], &p[1], &p[2], &p[3], &p[4]);
        let loss = all.square().sum(()) + last.sum(());
        if read {
            loss.item::<f64>().unwrap();
        }
        loss.backward().unwrap();
        p.iter().map(|t| t.grad().unwrap()).collect::<Vec<_>>()
    };
    let wanted = grads(unrolled, false);
    for read in [false, true] {
        for (a, b) in grads(recurrent, read).iter().zip(&wanted) {
            assert_equal(a, b);
        }
    }
}

#[test]
fn only_what_is_wanted_has_gradients() {
    let xs = random(&[3, 2], 1);
    let (w, offset) = (random(&[2], 2).requires_grad_(true), random(&[2], 3));
    // An integer that counts along, and a state without a gradient.
    let zero = Tensor::full((), 0i64, DType::I64);
    let ((total, _, _), ()) = scan((offset.clone(), zero, xs.i(0)), xs, |(s, n, last), x| {
        let n = n + 1;
        (
            (s + &w * &x * n.to_dtype(DType::F64) + last.detach(), n, x),
            (),
        )
    });
    total.sum(()).backward().unwrap();
    let xs = random(&[3, 2], 1);
    let wanted = xs.i(0) + xs.i(1) * 2.0 + xs.i(2) * 3.0;
    assert_equal(&w.grad().unwrap(), &wanted);
}

#[test]
fn detach_and_no_grad_hold_inside_bodies() {
    let x = random(&[4], 5).requires_grad_(true);
    let start = || Tensor::full((), 0.0, DType::F64);
    let (sum, ()) = scan(start(), x.clone(), |s, x| {
        (s + x.square() + x.detach() * 5.0, ())
    });
    sum.backward().unwrap();
    let wanted = x.detach() * 2.0;
    assert_equal(&x.grad().unwrap(), &wanted);
    x.zero_grad();
    let (sum, ()) = scan(start(), x.clone(), |s, x| {
        (s + x.square() + no_grad(|| x.exp()), ())
    });
    sum.backward().unwrap();
    assert_equal(&x.grad().unwrap(), &wanted);
}

#[test]
fn scans_nest() {
    let x = random(&[3, 4], 6);
    let run = |x: Tensor| {
        let zero = Tensor::full((), 0.0, DType::F64);
        let (total, sums) = scan(&zero, x, |total, row| {
            let (sum, parts) = scan(&zero, row, |s, x| {
                let s = (s + &x * &total).sin();
                (s.clone(), s * x)
            });
            (&total + &sum + 1.0, parts)
        });
        total * sums.sum(())
    };
    gradcheck_with(run, &x, bounds(1e-7, 1e-6)).unwrap();
}

#[test]
fn a_branch_is_one_of_two() {
    let x = vector(&[1.0, -2.0, 3.0]);
    for limit in [0.0, 5.0] {
        let (y, z) = cond(
            x.sum(()).gt(limit),
            || (&x * 2.0, x.sum(())),
            || (x.exp(), Tensor::full((), 7.0, DType::F32)),
        );
        assert_reference(&y);
        assert_reference(&z);
        let wanted = if limit == 0.0 { 2.0 } else { 7.0 };
        assert_eq!(z.item::<f32>().unwrap(), wanted);
    }
}

#[test]
fn gradients_flow_through_the_branch_that_ran() {
    let (x, w) = (random(&[3], 7), random(&[3], 8));
    for bias in [-100.0, 100.0] {
        let run = |(x, w): (Tensor, Tensor)| {
            let y = cond(
                x.detach().sum(()).gt(bias),
                || (&x * &w).sin(),
                || x.square() + 1.0,
            );
            y.sum(())
        };
        gradcheck_with(run, (&x, &w), bounds(1e-7, 1e-6)).unwrap();
        let once = |(x, w): (Tensor, Tensor)| {
            let (x, w) = (tracked(&x), tracked(&w));
            let create = Grad::new().create_graph(true);
            let g = grad_with(run((x.clone(), w)), &x, create).unwrap();
            g.square().sum(())
        };
        gradcheck_with(once, (&x, &w), bounds(1e-6, 1e-5)).unwrap();
    }
}

/// A constant that is small enough to be baked into a plan.
fn baked(shape: &[usize]) -> Tensor {
    let n = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..n).map(|i| (i % 13) as f32 * 0.125 - 0.75).collect();
    Tensor::from_slice(&values, shape).to(cuda::test_device())
}

/// Work on `[6, 8]` by constants, which kernels read in layouts of their own.
const BY_CONSTANTS: &[fn(&Tensor) -> Tensor] = &[
    |x| x.reshape([16, 3]).matmul(baked(&[3, 40])),
    |x| x.reshape([3, 16]).matmul(baked(&[16, 64])),
    |x| (x * 2.0).matmul(baked(&[8, 33]).exp()),
    |x| x.matmul(baked(&[64, 8]).t()).relu(),
    |x| {
        let x = x.reshape([1, 1, 6, 8]).expand([2, 8, 6, 8]);
        x.conv2d_with(baked(&[8, 8, 3, 3]), Conv::new().padding(1))
    },
    |x| {
        let x = x.reshape([1, 48, 1, 1]);
        x.conv2d(baked(&[16, 48, 1, 1])).relu()
    },
];

#[test]
fn constants_in_bodies_are_what_they_are_outside() {
    let x = baked(&[6, 8]) + vector(&[0.5]);
    let xs = kiln::stack(&[&x, &(&x * 0.5)], 0);
    let equal = |a: &Tensor, b: &Tensor| {
        assert_close(&a.to_vec::<f32>().unwrap(), &b.to_vec::<f32>().unwrap());
    };
    for work in BY_CONSTANTS {
        let [first, second] = [work(&x), work(&(&x * 0.5))];
        let holds = x.sum(()).gt(-1e9);
        let fails = x.sum(()).lt(-1e9);
        equal(&cond(&holds, || work(&x), || work(&x) * 2.0), &first);
        equal(&cond(&fails, || work(&x) * 2.0, || work(&x)), &first);
        let (_, each) = scan((), xs.clone(), |(), x| ((), work(&x)));
        equal(&each.i(0), &first);
        equal(&each.i(1), &second);
        for layout in [kiln::Layout::ChannelsFirst, kiln::Layout::ChannelsLast] {
            let options = kiln::CompileOptions {
                layout,
                ..Default::default()
            };
            let spec = Spec::like(&xs).unwrap();
            let run = |x: Tensor| {
                let (_, each) = scan((), &x, |(), x| ((), work(&x)));
                let holds = each.sum(()).gt(-1e9);
                cond(&holds, || work(&x.i(1)), || each.i(0))
            };
            let f = kiln::compile_with(spec, &options, run).unwrap();
            for _ in 0..2 {
                equal(&f.run(&xs).unwrap(), &second);
            }
        }
    }
}

#[test]
fn branches_stand_in_loops() {
    let x = random(&[6], 9);
    let run = |x: Tensor| {
        let one = Tensor::full((), 1.0, DType::F64);
        scan(one, x, |s, x| {
            let y = cond(x.detach().gt(0.0), || &s * &x, || &s + x.square());
            (y.clone(), y)
        })
        .1
        .sum(())
    };
    gradcheck_with(run, &x, bounds(1e-7, 1e-6)).unwrap();
}

#[test]
fn states_that_change_are_named() {
    let e = scan(matrix(2, 3), vector(&[1.0, 2.0]), |h, x| {
        (h.to_dtype(DType::F64), x)
    });
    let text = e.0.error().unwrap().to_string();
    assert!(
        text.contains("f32[2, 3]") && text.contains("f64[2, 3]"),
        "{text}"
    );
    assert!(
        text.contains("control_flow.rs") && text.contains("scan"),
        "{text}"
    );
    let text = e.1.error().unwrap().to_string();
    assert!(text.contains("f64[2, 3]"), "{text}");
    let uneven = scan((), (matrix(2, 3), matrix(4, 3)), |(), (a, b)| ((), a + b));
    let text = uneven.1.error().unwrap().to_string();
    assert!(
        text.contains("f32[4, 3]") && text.contains("2 steps"),
        "{text}"
    );
    let (a, b) = (matrix(2, 3), matrix(3, 2));
    let sides = cond(vector(&[1.0]).gt(0.0), || a.clone(), || b);
    let text = sides.error().unwrap().to_string();
    assert!(
        text.contains("f32[2, 3]") && text.contains("f32[3, 2]"),
        "{text}"
    );
    let number = cond(vector(&[1.0, 2.0]).gt(0.0), || a.clone(), || a.clone());
    assert!(number.error().unwrap().to_string().contains("one bool"));
    // The first invalid operation in a body, at its own line.
    let b = matrix(5, 5);
    let bad = scan((), matrix(2, 3), |(), x| ((), x.matmul(&b))); // here
    assert!(bad.1.error().unwrap().to_string().contains("// here"));
}

#[test]
fn data_errors_in_bodies_name_their_lines() {
    let scanned = line!() + 4;
    let pick = |at: &[i64]| {
        let index = indices(at, &[at.len(), 1]);
        let table = vector(&[1.0, 2.0, 3.0]);
        let picked = scan((), index, |(), i| {
            let row = table.index_select(0, &i); // this line
            ((), row * 2.0)
        });
        picked.1.to_vec::<f32>()
    };
    assert_eq!(pick(&[0, 2]).unwrap(), [2.0, 6.0]);
    let text = pick(&[1, 3, 7]).unwrap_err().to_string();
    assert!(
        text.contains("// this line") && text.contains("index_select: index 3 is outside 0..3"),
        "{text}"
    );
    let place = format!("in scan at tests/kiln/control_flow.rs:{scanned}");
    assert!(text.contains(&place), "{text}");
    // The second branch has a site of its own.
    let index = indices(&[9], &[1]);
    let table = vector(&[1.0, 2.0]);
    let e = cond(
        vector(&[1.0]).gt(2.0),
        || table.index_select(0, &index),
        || table.exp().index_select(0, &index), // that line
    );
    let text = e.to_vec::<f32>().unwrap_err().to_string();
    assert!(
        text.contains("// that line") && text.contains("in cond at"),
        "{text}"
    );
}

#[test]
fn a_failing_loop_leaves_cells_alone() {
    let cell = Var::new(vector(&[1.0])).unwrap();
    let index = indices(&[0, 5], &[2, 1]);
    let table = vector(&[1.0, 2.0]);
    let (sum, ()) = scan(cell.get(), index, |s, i| {
        (s + table.index_select(0, &i), ())
    });
    cell.assign(&sum).unwrap();
    assert!(sum.to_vec::<f32>().is_err());
    assert_eq!(cell.get().to_vec::<f32>().unwrap(), [1.0]);
}

#[test]
fn random_numbers_differ_from_step_to_step() {
    let draws = || {
        let three = Scan::new().length(3);
        kiln::with_seed(3, || {
            let inner = || {
                scan_with((), (), three.clone(), |(), ()| {
                    ((), Tensor::rand([2], DType::F64))
                })
                .1
            };
            scan_with((), (), three.clone(), |(), ()| ((), inner()))
                .1
                .to_vec::<f64>()
                .unwrap()
        })
    };
    let all = draws();
    assert_eq!(all, draws());
    let mut sorted = all.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup();
    assert_eq!(sorted.len(), 18, "{all:?}");
}

#[test]
fn cells_are_read_but_not_assigned_in_bodies() {
    let cell = Var::parameter(vector(&[2.0])).unwrap();
    let (product, ()) = scan(vector(&[1.0]), vector(&[1.0, 2.0]), |s, x| {
        assert!(cell.assign(&s).is_err());
        (s * cell.get() * x, ())
    });
    product.sum(()).backward().unwrap();
    assert_eq!(cell.grad().unwrap().to_vec::<f32>().unwrap(), [8.0]);
}

#[test]
fn loops_compile_with_symbolic_sizes_and_lengths() {
    let p = parts(5);
    let spec = Spec::new(DType::F64, ("length", "batch", 4));
    let spec = spec.on(cuda::test_device());
    let compiled = compile(spec, |x| {
        let h = x.select(0, 0).narrow(1, 0, 3) * 0.0;
        let (last, all) = recurrent(&h, &x, &p[2], &p[3], &p[4]);
        [last, all]
    })
    .unwrap();
    for (length, batch) in [(5, 2), (2, 3), (7, 4)] {
        let xs = random(&[length, batch, 4], 20);
        let found = compiled.run(&xs).unwrap();
        let zeros = Tensor::zeros([batch, 3], DType::F64);
        let (last, all) = unrolled(&zeros, &xs, &p[2], &p[3], &p[4]);
        assert_equal(&found[0], &last);
        assert_equal(&found[1], &all);
    }
    assert!(compiled.explain().to_string().contains("loop"));
}

#[test]
fn other_lengths_need_no_new_plan() {
    let run = |length: usize| {
        let xs = Tensor::ones([length, 3], DType::F32) * 0.125;
        let (last, ()) = scan(vector(&[0.0, 1.0, 2.0]), xs, |s, x| {
            (s * 0.5 + x.cosh(), ())
        });
        last.to_vec::<f32>().unwrap()
    };
    for length in [4, 6] {
        run(length);
    }
    // The third length runs the plan of the second, whose length is a symbol.
    let before = kiln::explain(Tensor::ones([1], DType::F32)).map(|_| ());
    assert!(before.is_ok());
    let steps: Vec<f32> = (0..9).fold(vec![0.0, 1.0, 2.0], |s, _| {
        s.iter().map(|s| s * 0.5 + 0.125f32.cosh()).collect()
    });
    assert_close(&run(9), &steps);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = || {
        let p: Vec<Tensor> = parts(6).iter().map(|t| t.requires_grad_(true)).collect();
        let (last, all) = recurrent(&p[0], &p[1], &p[2], &p[3], &p[4]);
        (all.sum(()) + last.sum(())).backward().unwrap();
        let bits = |t: &Tensor| t.grad().unwrap().to_vec::<f64>().unwrap();
        p.iter().map(bits).collect::<Vec<_>>()
    };
    kiln::set_threads(1);
    let one = run();
    kiln::set_threads(2);
    assert_eq!(one, run());
    kiln::set_threads(std::thread::available_parallelism().map_or(1, |n| n.get()));
}
