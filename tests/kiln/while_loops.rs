//! Loops whose number of steps depends on data. With `KILN_TEST_DEVICE=cuda` on a GPU, which needs a largest number.

use crate::cuda;
use kiln::{
    DType, Device, Result, Spec, Tensor, Var, WhileLoop, compile, cond, evaluate_reference,
    gradcheck, scan, while_loop, while_loop_with,
};

fn tensor(values: &[f64]) -> Tensor {
    Tensor::from(values).to(cuda::test_device())
}

fn at_most(n: i64) -> WhileLoop {
    WhileLoop::new().max_trips(n)
}

/// Collatz' steps from a number to 1: the number, and how many steps there were.
fn collatz(n: i64, options: WhileLoop) -> (Tensor, Tensor) {
    let n = Tensor::from(n).to(cuda::test_device());
    let state = (n, Tensor::from(0i64).to(cuda::test_device()));
    let next = |(n, steps): (Tensor, Tensor)| {
        let odd = n.remainder(2).eq(1);
        let next = kiln::where_(odd, &n * 3 + 1, n.floor_divide(2));
        (next, steps + 1)
    };
    while_loop_with(state, options, |(n, _)| n.ne(1), next)
}

#[test]
fn it_ends_where_the_condition_does() -> Result<()> {
    // From none to many, ending in either of the two buffers that values alternate between.
    for (n, steps) in [(1, 0), (2, 1), (4, 2), (3, 7), (6, 8), (27, 111)] {
        let (one, counted) = collatz(n, at_most(120));
        assert_eq!((one.item::<i64>()?, counted.item::<i64>()?), (1, steps));
        if cuda::test_device() == Device::Cpu {
            let (one, counted) = collatz(n, WhileLoop::new());
            assert_eq!((one.item::<i64>()?, counted.item::<i64>()?), (1, steps));
        }
        let (_, counted) = collatz(n, at_most(2));
        assert_eq!(counted.item::<i64>()?, steps.min(2));
        let (same, counted) = collatz(n, at_most(0));
        assert_eq!((same.item::<i64>()?, counted.item::<i64>()?), (n, 0));
    }
    Ok(())
}

#[test]
fn it_is_what_the_reference_gives() -> Result<()> {
    let x = tensor(&[3.0, -0.5, 2.0]);
    let run = || {
        let limit = x.abs().amax(()) + 40.0;
        let powers = |(y, n): (Tensor, Tensor)| (&y * &x, n + &y.sum(()));
        let init = (x.clone(), tensor(&[0.0]).reshape(()));
        let (y, n) = while_loop_with(init, at_most(30), |(y, _)| y.amax(()).lt(&limit), powers);
        y + n
    };
    let got = run().to_vec::<f64>()?;
    let want = evaluate_reference(run())?.to_vec::<f64>()?;
    assert_eq!(got, want);
    // 3⁴ is more than 43.
    assert_eq!(
        got[0],
        81.0 + (3.0 + 9.0 + 27.0) + (-0.5 + 0.25 - 0.125) + (2.0 + 4.0 + 8.0)
    );
    Ok(())
}

#[test]
fn loops_nest_and_compile() -> Result<()> {
    // Each slice is halved while its sum is above 1, until a branch stops it.
    let f = |xs: Tensor| {
        let (_, ys) = scan((), xs, |(), x| {
            let y = while_loop_with(
                x,
                at_most(20),
                |x| x.abs().sum(()).gt(1.0),
                |x| {
                    let close = x.abs().sum(()).lt(4.0);
                    cond(close, || &x * 0.25, || &x * 0.5)
                },
            );
            ((), y)
        });
        ys
    };
    let want = |row: &[f64]| {
        let mut row = row.to_vec();
        loop {
            let sum: f64 = row.iter().map(|x| x.abs()).sum();
            if sum.is_nan() || sum <= 1.0 {
                return row;
            }
            row.iter_mut()
                .for_each(|x| *x *= if sum < 4.0 { 0.25 } else { 0.5 });
        }
    };
    let rows = [[0.1, -0.2], [3.0, 1.5], [-100.0, 40.0], [f64::NAN, 1.0]];
    let xs = tensor(rows.as_flattened()).reshape([4, 2]);
    let expected: Vec<f64> = rows.iter().flat_map(|r| want(r)).collect();
    let same = |got: Vec<f64>| {
        let pairs = got.iter().zip(&expected);
        pairs.for_each(|(a, b)| assert!(a == b || a.is_nan() && b.is_nan(), "{a} {b}"));
    };
    same(f(xs.clone()).to_vec()?);
    let spec = Spec::new(DType::F64, ("n", 2)).on(cuda::test_device());
    same(compile(spec, f)?.run(&xs)?.to_vec()?);
    Ok(())
}

#[test]
fn a_bounded_loop_has_gradients() -> Result<()> {
    let step = |x: &Tensor| {
        let y = while_loop_with(
            x.clone(),
            at_most(9),
            |y| y.sum(()).lt(50.0),
            |y| &y * 2.0 + x.square(),
        );
        y.sin().sum(())
    };
    gradcheck(|x| step(&x), tensor(&[0.3, 1.1, -0.4]))?;
    // Of a loop without steps, and through a branch that would divide by 0 after the end.
    let x = Var::parameter(tensor(&[2.0]))?;
    let y = while_loop_with(
        x.get(),
        at_most(5),
        |y| y.sum(()).gt(0.0),
        |y| (&y - 1.0) / y.clone() * y,
    );
    y.sum(()).backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [1.0]);
    Ok(())
}

#[test]
fn what_it_can_not_is_refused_by_name() -> Result<()> {
    let x = tensor(&[1.0, 2.0]);
    let text = |t: &Tensor| t.to_vec::<f64>().unwrap_err().to_string();
    let low = |y: Tensor| y.sum(()).lt(9.0);
    let wider = while_loop(x.clone(), low, |y| kiln::cat([&y, &y], 0)); // here
    let wrong = text(&wider);
    assert!(
        wrong.contains("f64[2]") && wrong.contains("f64[4]"),
        "{wrong}"
    );
    assert!(
        wrong.contains("// here") && wrong.contains("while_loop"),
        "{wrong}"
    );
    let (a, _) = while_loop(
        (x.clone(), x.clone()),
        |(a, _)| low(a),
        |(a, b)| (a, b.to_dtype(DType::F32)),
    );
    assert!(text(&a).contains("tensor 1 of the state"), "{}", text(&a));
    let several = while_loop(x.clone(), |y| y.lt(9.0), |y| y * 2.0);
    assert!(text(&several).contains("one bool, not bool[2]"));
    let negative = while_loop_with(x.clone(), at_most(-1), low, |y| y * 2.0);
    assert!(text(&negative).contains("there can't be -1 steps"));
    let random = while_loop(x.clone(), low, |y| y + Tensor::rand([2], DType::F64));
    assert!(text(&random).contains("max_trips"), "{}", text(&random));

    let tracked = Var::parameter(&x)?;
    let unbounded = while_loop(tracked.get(), low, |y| y * 2.0);
    let text = unbounded.sum(()).backward().unwrap_err().to_string();
    assert!(
        text.contains("max_trips") && text.contains("scan"),
        "{text}"
    );
    let run = while_loop(x, low, |y| y * 2.0).to_vec::<f64>();
    match cuda::test_device() {
        Device::Cpu => assert_eq!(run?, [4.0, 8.0]),
        _ => {
            let text = run.unwrap_err().to_string();
            assert!(
                text.contains("max_trips") && text.contains("while_loops.rs"),
                "{text}"
            );
        }
    }
    Ok(())
}

#[test]
fn random_numbers_differ_from_step_to_step() -> Result<()> {
    let draws = tensor(&[0.0; 4]);
    let n = Tensor::from(0i64).to(cuda::test_device());
    let (draws, _) = while_loop_with(
        (draws, n),
        at_most(8),
        |(_, n)| n.lt(4),
        |(draws, n)| {
            let x = Tensor::rand([1], DType::F64).to(cuda::test_device());
            let here = Tensor::arange(0, 4, 1).to(cuda::test_device()).eq(&n);
            (kiln::where_(here, x, draws), n + 1)
        },
    );
    let draws = draws.to_vec::<f64>()?;
    for (i, x) in draws.iter().enumerate() {
        assert!(*x > 0.0 && !draws[..i].contains(x), "{draws:?}");
    }
    Ok(())
}

/// Sums of results are the same for any number of steps in a program: the first condition is not a constant of it.
#[test]
fn other_starts_need_no_new_loop() -> Result<()> {
    let f = compile(Spec::new(DType::F64, [2]).on(cuda::test_device()), |x| {
        while_loop_with(x, at_most(40), |x| x.amax(()).gt(1.0), |x| x * 0.5)
    })?;
    for start in [0.5f64, 3.0, 1e6] {
        let got = f.run(&tensor(&[start, 1.0]))?;
        let halvings = start.log2().ceil().max(0.0) as i32;
        let want = [start, 1.0].map(|x| x * 0.5f64.powi(halvings));
        assert_eq!(got.to_vec::<f64>()?, want);
    }
    Ok(())
}
