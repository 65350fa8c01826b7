//! Operators with a kernel of the user's own.

use crate::{assert_close, matrix, vector};
use kiln::{
    CustomOp, DType, ErrorKind, Fact, Grad, GradCheck, KernelError, Result, Spec, Tensor, Var,
    compile, custom_function, evaluate_reference, explain, grad, grad_with, gradcheck_with,
    no_grad,
};
use kiln_plan::Entry;
use kiln_runtime::{Buffer, Executable};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// x³, of f32 or f64.
static CUBE: LazyLock<CustomOp> = LazyLock::new(|| {
    let cube = CustomOp::new(
        "test::cube",
        |inputs| Ok(inputs[0].clone()),
        |inputs, output| match inputs[0].dtype() {
            DType::F64 => {
                let x = inputs[0].as_slice::<f64>()?;
                output.write(&x.iter().map(|x| x * x * x).collect::<Vec<f64>>())
            }
            _ => {
                let x = inputs[0].as_slice::<f32>()?;
                output.write(&x.iter().map(|x| x * x * x).collect::<Vec<f32>>())
            }
        },
    );
    let derivative = |x: &[Tensor], _: &Tensor, g: &Tensor| vec![Some(SQUARE3.call([&x[0]]) * g)];
    cube.unwrap().backward(derivative)
});

/// 3x² of f64 or f32: the derivative of the cube is a custom operator too.
static SQUARE3: LazyLock<CustomOp> = LazyLock::new(|| {
    let op = CustomOp::new(
        "test::square3",
        |inputs| Ok(inputs[0].clone()),
        |inputs, output| match output.dtype() {
            DType::F64 => {
                let pairs = output.as_mut_slice::<f64>()?.iter_mut();
                pairs
                    .zip(inputs[0].as_slice::<f64>()?)
                    .for_each(|(y, x)| *y = 3.0 * x * x);
                Ok(())
            }
            _ => {
                let pairs = output.as_mut_slice::<f32>()?.iter_mut();
                pairs
                    .zip(inputs[0].as_slice::<f32>()?)
                    .for_each(|(y, x)| *y = 3.0 * x * x);
                Ok(())
            }
        },
    );
    op.unwrap().backward(|x, _, g| vec![Some(&x[0] * 6.0 * g)])
});

/// The i64 row sums of a bool matrix times a number: other dtypes and shapes, two operands.
static COUNT: LazyLock<CustomOp> = LazyLock::new(|| {
    let infer = |inputs: &[Fact]| match inputs {
        [x, n] if x.dtype == DType::Bool && x.rank() == 2 && n.rank() == 0 => {
            Ok(Fact::new(DType::I64, [x.shape[0].clone()]))
        }
        _ => Err("takes a bool matrix and a number".into()),
    };
    let op = CustomOp::new("test::count", infer, |inputs, output| {
        let x = inputs[0].as_slice::<bool>()?;
        let n = inputs[1].as_slice::<i64>()?[0];
        let columns = inputs[0].shape()[1];
        for (r, out) in output.as_mut_slice::<i64>()?.iter_mut().enumerate() {
            let row = &x[r * columns..][..columns];
            *out = n * row.iter().filter(|b| **b).count() as i64;
        }
        Ok(())
    });
    op.unwrap()
});

fn identity(name: &'static str, kernel: fn(f32) -> Result<f32, KernelError>) -> CustomOp {
    let op = CustomOp::new(
        name,
        |inputs| Ok(inputs[0].clone()),
        move |inputs, output| {
            for (x, y) in inputs[0].as_slice()?.iter().zip(output.as_mut_slice()?) {
                *y = kernel(*x)?;
            }
            Ok(())
        },
    );
    op.unwrap()
}

#[test]
fn it_is_a_launch_between_others() -> Result<()> {
    let x = matrix(5, 7);
    let y = CUBE.call([&(&x.t() * 2.0 + 1.0)]).sum([0]);
    let wanted: Vec<f32> = (&x.t() * 2.0 + 1.0).pow(3.0).sum([0]).to_vec::<f32>()?;
    let report = explain(&y)?.to_string();
    let alone = "kernels: 3 in every run";
    assert!(
        report.contains(alone) && report.contains("\n  test::cube\n"),
        "{report}"
    );
    assert_close(&evaluate_reference(&y)?.to_vec::<f32>()?, &wanted);
    assert_close(&y.to_vec::<f32>()?, &wanted);
    Ok(())
}

#[test]
fn operands_are_contiguous_whatever_they_are() -> Result<()> {
    let rows = |x: &Tensor, n: &Tensor| COUNT.call([x, n]).to_vec::<i64>();
    let two = Tensor::scalar(2i64);
    let x = matrix(4, 3).gt(0.0);
    let each: Vec<bool> = x.to_vec()?;
    let wanted = |at: &dyn Fn(usize, usize) -> bool, r: usize, c: usize| -> Vec<i64> {
        let row = |i| 2 * (0..c).filter(|j| at(i, *j)).count() as i64;
        (0..r).map(row).collect()
    };
    assert_eq!(rows(&x, &two)?, wanted(&|i, j| each[i * 3 + j], 4, 3));
    assert_eq!(rows(&x.t(), &two)?, wanted(&|i, j| each[j * 3 + i], 3, 4));
    assert_eq!(
        rows(&x.i((1..3, ..)), &two)?,
        wanted(&|i, j| each[(i + 1) * 3 + j], 2, 3)
    );
    // Scalars, broadcasts and empty tensors.
    assert_eq!(rows(&Tensor::ones([2, 5], DType::Bool), &two)?, [10, 10]);
    assert_eq!(rows(&x.i((0..1, ..)).expand([2, 3]), &two)?.len(), 2);
    assert_eq!(rows(&Tensor::ones([3, 0], DType::Bool), &two)?, [0, 0, 0]);
    assert!(rows(&Tensor::ones([0, 3], DType::Bool), &two)?.is_empty());
    Ok(())
}

#[test]
fn gradients_of_first_and_second_order() -> Result<()> {
    let x = matrix(3, 4).to_dtype(DType::F64);
    let twice = |x: Tensor| CUBE.call(&x * CUBE.call(&x));
    gradcheck_with(twice, &x * 0.3, GradCheck::new().atol(1e-7).rtol(1e-5))?;

    let x = x.requires_grad_(true);
    let create = Grad::new().create_graph(true);
    let dx = grad_with(CUBE.call(&x).sum(()), &x, create.clone())?;
    let ddx = grad_with(dx.sum(()), &x, create)?;
    assert_eq!(ddx.to_vec::<f64>()?, (&x * 6.0).to_vec::<f64>()?);
    let dddx = grad(ddx.sum(()), &x)?;
    assert_eq!(dddx.to_vec::<f64>()?, [6.0; 12]);
    assert!(!no_grad(|| CUBE.call(&x)).requires_grad());
    Ok(())
}

#[test]
fn what_a_function_saves_is_differentiated_again() -> Result<()> {
    let x = Tensor::from_slice(&[0.5f64, 2.0], [2]).requires_grad_(true);
    let exp = custom_function(
        |x: Tensor| {
            let y = x.exp();
            (y.clone(), y)
        },
        |y: Tensor, g: Tensor| g * y,
    );
    let mut y = exp.apply(&x).sum(());
    for _ in 0..3 {
        let dy = grad_with(&y, &x, Grad::new().create_graph(true))?;
        assert_eq!(dy.to_vec::<f64>()?, x.exp().to_vec::<f64>()?);
        y = dy.sum(());
    }
    Ok(())
}

#[test]
fn it_trains_inside_compile_and_for_any_size() -> Result<()> {
    let weight = Var::parameter(vector(&[0.5, -1.0, 2.0]))?;
    let step = compile(Spec::new(DType::F32, ("n", 3)), |x| {
        weight.zero_grad();
        let loss = CUBE.call(&x * weight.get()).sum(());
        loss.backward()?;
        let g = weight.grad().unwrap();
        weight.assign(&(weight.get() - &g * 0.01))?;
        Result::Ok(vec![loss, g])
    })?;
    for n in [2, 5, 3] {
        let w = weight.get().to_vec::<f32>()?;
        let x = matrix(n, 3);
        let outputs = step.run(&x)?;
        let (mut loss, mut g) = (0.0, [0.0f32; 3]);
        for (i, x) in x.to_vec::<f32>()?.iter().enumerate() {
            loss += (x * w[i % 3]).powi(3);
            g[i % 3] += 3.0 * (x * w[i % 3]).powi(2) * x;
        }
        assert_close(&outputs[0].to_vec::<f32>()?, &[loss]);
        assert_close(&outputs[1].to_vec::<f32>()?, &g);
        let moved: Vec<f32> = w.iter().zip(g).map(|(w, g)| w - 0.01 * g).collect();
        assert_close(&weight.get().to_vec::<f32>()?, &moved);
    }
    Ok(())
}

#[test]
fn a_kernel_runs_once_for_each_plan_run() -> Result<()> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let op = identity("test::counted", |x| {
        RUNS.fetch_add(1, Ordering::Relaxed);
        Ok(x)
    });
    // Equal calls run once, unused ones never.
    let x = vector(&[1.0]);
    let (a, b) = (op.call(&x), op.call(&x));
    let _unused = op.call(&b);
    let sum = no_grad(|| a + b);
    drop(_unused);
    assert_eq!(sum.to_vec::<f32>()?, [2.0]);
    assert_eq!(RUNS.load(Ordering::Relaxed), 1);
    // A call on a parameter alone is prepared, so it does not run again.
    let w = Var::new(vector(&[2.0]))?;
    let f = compile(Spec::new(DType::F32, 1), |x| &x + op.call(&w))?;
    for _ in 0..3 {
        assert_eq!(f.run(&x)?.to_vec::<f32>()?, [3.0]);
    }
    assert_eq!(RUNS.load(Ordering::Relaxed), 2);
    Ok(())
}

#[test]
fn threads_share_an_operator() -> Result<()> {
    let f = compile(Spec::new(DType::F32, "n"), |x| CUBE.call(&x) + 1.0)?;
    std::thread::scope(|s| {
        for t in 0..2 {
            let f = &f;
            s.spawn(move || {
                for n in 2..40 {
                    let x: Vec<f32> = (0..n).map(|i| (i * (t + 1)) as f32).collect();
                    let wanted: Vec<f32> = x.iter().map(|x| x * x * x + 1.0).collect();
                    let x = vector(&x);
                    assert_eq!(f.run(&x).unwrap().to_vec::<f32>().unwrap(), wanted);
                    assert_eq!((CUBE.call(&x) + 1.0).to_vec::<f32>().unwrap(), wanted);
                }
            });
        }
    });
    Ok(())
}

#[test]
fn failures_name_the_operator_and_the_line() -> Result<()> {
    let told = identity("test::refuses", |x| match x > 0.0 {
        true => Ok(x),
        false => Err(format!("{x} is not positive").into()),
    });
    let panics = identity("test::panics", |x| Ok([x, x][x.to_bits() as usize]));
    let sizes = CustomOp::new(
        "test::sizes",
        |inputs| Ok(Fact::new(DType::F32, [&inputs[0].shape[0] + &1.into()])),
        |inputs, output| output.write(inputs[0].as_slice::<f32>()?),
    )?;
    let dtypes = CustomOp::new(
        "test::dtypes",
        |inputs| Ok(inputs[0].clone()),
        |_, output| output.write(&[0.0f64]),
    )?;
    let x = vector(&[-1.0, 1.0]);
    let cases = [
        (&told, "test::refuses", "-2 is not positive"),
        (
            &panics,
            "test::panics",
            "its kernel panicked: index out of bounds",
        ),
        (&sizes, "test::sizes", "f32[3] takes 3 elements, not 2"),
        (&dtypes, "test::dtypes", "asked for f64 elements of f32[2]"),
    ];
    for (op, name, text) in cases {
        let (y, line) = (op.call([&(&x * 2.0)]) * 2.0, line!());
        let compiled = compile(Spec::new(DType::F32, 2), |x| op.call(&x))?;
        let line_inside = line!() - 1;
        let lazy = y.to_vec::<f32>().unwrap_err();
        let inside = compiled.run(&(&x * 2.0)).unwrap_err();
        for (e, line) in [(lazy, line), (inside, line_inside)] {
            assert_eq!((e.kind(), e.op()), (ErrorKind::Data, name), "{e}");
            assert!(e.message().contains(text), "{e}");
            assert_eq!(e.loc().line(), line, "{e}");
        }
        let e = evaluate_reference(&y).unwrap_err();
        assert!(
            e.message().contains(name) && e.message().contains(text),
            "{e}"
        );
    }
    Ok(())
}

#[test]
fn what_does_not_apply_says_so() -> Result<()> {
    let x = vector(&[1.0]);
    let e = COUNT.call(&x).error().cloned().unwrap();
    assert_eq!(
        (e.op(), e.message()),
        ("test::count", "takes a bool matrix and a number")
    );
    let e = CUBE.call(()).error().cloned().unwrap();
    assert!(e.message().contains("at least one tensor"), "{e}");
    let taken = CustomOp::new("test::count", |x| Ok(x[0].clone()), |_, _| Ok(()));
    let e = taken.err().unwrap();
    assert!(
        e.message().contains("`test::count` is registered already"),
        "{e}"
    );
    // Without derivative, at the line of the call.
    let plain = identity("test::plain", Ok);
    let (y, line) = (plain.call(x.requires_grad_(true)), line!());
    let e = y.backward().unwrap_err();
    assert!(e.message().contains("no derivative"), "{e}");
    assert_eq!((e.op(), e.loc().line()), ("test::plain", line));
    // In a loop its derivative would be lost.
    let cubed = |x: &Tensor| {
        kiln::scan(x.clone(), Tensor::zeros([2], DType::F32), |x, _| {
            (CUBE.call(&x), ())
        })
    };
    let (y, ()) = cubed(&x.requires_grad_(true));
    let e = y.error().cloned().unwrap();
    assert!(e.message().contains("is lost inside scan and cond"), "{e}");
    let (y, ()) = kiln::no_grad(|| cubed(&vector(&[2.0])));
    assert_eq!(y.to_vec::<f32>()?, [512.0]);
    // A derivative with a wrong number of gradients.
    let op = identity("test::misfit", Ok).backward(|_, _, _| vec![]);
    let e = op.call([&x.requires_grad_(true)]).backward().unwrap_err();
    assert!(e.message().contains("of 1 inputs gave 0 gradients"), "{e}");
    Ok(())
}

#[test]
fn a_compiled_function_runs_where_its_operators_are_registered() -> Result<()> {
    let f = compile(Spec::new(DType::F32, "n"), |x| CUBE.call(&x) + 1.0)?;
    let bytes = f.to_bytes();
    let executable = Executable::new(Entry::from_bytes(&bytes).unwrap().plan).unwrap();
    let x = Buffer::from_slice(&[1.0f32, 2.0, 3.0], &[3]).unwrap();
    let y = executable.run(&mut [x], &[]).unwrap();
    assert_eq!(y[0].as_slice::<f32>().unwrap(), [2.0, 9.0, 28.0]);
    // A plan with a name that nobody registered.
    let mut plan = Entry::from_bytes(&bytes).unwrap().plan;
    for kernel in &mut plan.kernels {
        if let kiln_plan::Kernel::Custom(c) = Arc::make_mut(kernel) {
            c.name = "test::elsewhere".into();
        }
    }
    let e = Executable::new(plan).err().unwrap();
    let wanted = "no custom op `test::elsewhere` is registered in this program; register it first";
    assert_eq!(e.to_string(), wanted);
    Ok(())
}
