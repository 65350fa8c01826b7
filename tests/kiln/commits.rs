//! The contents of cells after a run: the same for lazy values and for a compiled function.

use crate::cuda::{device, test_device};
use crate::vector;
use kiln::{
    CustomOp, DType, Device, ErrorKind, Result, Spec, Tensor, Var, assign_together, compile,
};
use std::sync::LazyLock;

/// The two kinds of runs.
#[derive(Clone, Copy, Debug)]
enum Run {
    Lazy,
    Compiled,
}

/// A program that assigns cells, of an i64 vector of one element.
type Program<'a> = &'a (dyn Fn(&Tensor) -> Result<Tensor> + Sync);

impl Run {
    /// Runs the program once for each index, up to the first error.
    fn run(self, device: Device, program: Program, indices: &[i64]) -> Result<()> {
        let compiled = match self {
            Run::Lazy => None,
            Run::Compiled => {
                let spec = Spec::new(DType::I64, [1]).on(device);
                Some(compile(spec, |x| program(&x))?)
            }
        };
        for i in indices {
            let x = Tensor::from([*i]).to(device);
            match &compiled {
                None => program(&x)?.to_vec::<f32>()?,
                Some(f) => f.run(&x)?.to_vec::<f32>()?,
            };
        }
        Ok(())
    }
}

/// Checks a claim for both kinds of runs.
fn both(claim: impl Fn(Run)) {
    claim(Run::Lazy);
    claim(Run::Compiled);
}

/// Cells filled with these values, large enough to be overwritten in place.
fn cells<const N: usize>(device: Device, values: [f32; N]) -> [Var; N] {
    values.map(|v| {
        let cell = Var::new(Tensor::full([1 << 10], v, DType::F32).to(device)).unwrap();
        cell.get().realize().unwrap();
        cell
    })
}

/// The value of a cell, which is the same in all elements.
fn number(cell: &Var) -> f32 {
    let values = cell.get().to_vec::<f32>().unwrap();
    assert!(values.iter().all(|v| *v == values[0]), "half written");
    values[0]
}

/// Adds 1 to one cell, and an indexed element of a table of two to the other.
fn looked_up<'a>(a: &'a Var, b: &'a Var) -> impl Fn(&Tensor) -> Result<Tensor> + Sync + 'a {
    let table = vector(&[10.0, 20.0]).to(a.device());
    move |index| {
        let row = table.index_select(0, index);
        let (next, sum) = (a.get() + 1.0, b.get() + &row);
        assign_together([(a, &next), (b, &sum)])?;
        Ok(row)
    }
}

fn failure_touches_no_cell(run: Run, device: Device) {
    let [a, b] = cells(device, [1.0, 2.0]);
    let e = run.run(device, &looked_up(&a, &b), &[1, 5]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data, "{run:?}");
    assert_eq!([number(&a), number(&b)], [2.0, 22.0], "{run:?}");
    run.run(device, &looked_up(&a, &b), &[0, 0]).unwrap();
    assert_eq!([number(&a), number(&b)], [4.0, 42.0], "{run:?}");
}

#[test]
fn a_failure_in_the_middle_touches_no_cell() {
    both(|run| failure_touches_no_cell(run, test_device()));
}

#[test]
fn a_data_error_on_a_device_touches_no_cell() {
    let Some(gpu) = device() else { return };
    both(|run| failure_touches_no_cell(run, gpu));
}

/// The identity, which panics for a negative number.
static PANICS: LazyLock<CustomOp> = LazyLock::new(|| {
    let op = CustomOp::new(
        "commits::panics",
        |inputs| Ok(inputs[0].clone()),
        |inputs, output| {
            let x = inputs[0].as_slice::<f32>()?;
            assert!(x[0] >= 0.0, "a negative number");
            output.write(x)
        },
    );
    op.unwrap()
});

/// The identity, which refuses a negative number.
static REFUSES: LazyLock<CustomOp> = LazyLock::new(|| {
    let op = CustomOp::new(
        "commits::refuses",
        |inputs| Ok(inputs[0].clone()),
        |inputs, output| match inputs[0].as_slice::<f32>()? {
            x if x[0] < 0.0 => Err("a negative number".into()),
            x => output.write(x),
        },
    );
    op.unwrap()
});

#[test]
fn a_custom_operator_that_fails_or_panics_touches_no_cell() {
    for op in [&*PANICS, &*REFUSES] {
        both(|run| {
            let [a, b] = cells(Device::Cpu, [1.0, 2.0]);
            let program = |x: &Tensor| {
                let x = op.call([&x.to_dtype(DType::F32)]);
                assign_together([(&a, &(a.get() + &x)), (&b, &(b.get() * 2.0))])?;
                Ok(x)
            };
            let e = run.run(Device::Cpu, &program, &[3, -1]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Data, "{e}");
            assert_eq!([number(&a), number(&b)], [4.0, 4.0], "{run:?}");
            run.run(Device::Cpu, &program, &[3]).unwrap();
            assert_eq!([number(&a), number(&b)], [7.0, 8.0], "{run:?}");
        });
    }
}

#[test]
fn cells_may_change_places() {
    both(|run| {
        let device = test_device();
        let [a, b] = cells(device, [1.0, 2.0]);
        let program = |_: &Tensor| {
            let (x, y) = (a.get(), b.get());
            assign_together([(&a, &y), (&b, &(&x * 1.0))])?;
            Ok(a.get() + b.get())
        };
        run.run(device, &program, &[0; 5]).unwrap();
        assert_eq!([number(&a), number(&b)], [2.0, 1.0], "{run:?}");
    });
}

#[test]
fn old_values_that_somebody_holds_stay() {
    both(|run| {
        let device = test_device();
        let [a, b] = cells(device, [1.0, 2.0]);
        let (old, later) = (a.get(), b.get() * 3.0);
        run.run(device, &looked_up(&a, &b), &[0, 1]).unwrap();
        assert_eq!([number(&a), number(&b)], [3.0, 32.0], "{run:?}");
        assert_eq!(old.i(7).item::<f32>().unwrap(), 1.0, "{run:?}");
        assert_eq!(later.i(7).item::<f32>().unwrap(), 6.0, "{run:?}");
    });
}

#[test]
fn threads_see_cells_whole() {
    both(|run| {
        let device = test_device();
        let [a, b] = cells(device, [0.0, 0.0]);
        let both_of = |x: &Tensor| {
            let x = x.to_dtype(DType::F32).expand([1 << 10]);
            let (up, down) = (&x + a.get() * 0.0, b.get() * 0.0 - &x);
            // Some threads assign in one order, others in the other.
            assign_together([(&a, &up), (&b, &down)])?;
            Ok(x)
        };
        let other_way = |x: &Tensor| {
            let x = x.to_dtype(DType::F32).expand([1 << 10]);
            let (up, down) = (&x + b.get() * 0.0, a.get() * 0.0 - &x);
            assign_together([(&b, &up), (&a, &down)])?;
            Ok(x)
        };
        std::thread::scope(|s| {
            for i in 1..=4 {
                let program: Program = if i % 2 == 0 { &both_of } else { &other_way };
                let (a, b) = (&a, &b);
                s.spawn(move || {
                    for _ in 0..20 {
                        run.run(device, program, &[i]).unwrap();
                        number(a);
                        number(b);
                    }
                });
            }
        });
        let found = [number(&a), -number(&b)];
        let expected = [1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0];
        assert!(
            found.iter().all(|v| expected.contains(v)),
            "{run:?}: {found:?}"
        );
    });
}

#[test]
fn a_watcher_reads_and_assigns_cells() -> Result<()> {
    let [w, sum] = [0.0f32; 2].map(|x| Var::new(Tensor::from([x])).unwrap());
    let (seen, total) = (w.clone(), sum.clone());
    w.watch(move |value| {
        let read = seen.get().to_vec::<f32>().unwrap();
        assert_eq!(read, value.to_vec::<f32>().unwrap());
        total.assign(total.get() + value).unwrap();
    });
    w.assign(w.get() + 1.0)?;
    assert_eq!(w.get().to_vec::<f32>()?, [1.0]);
    let step = compile(Spec::new(DType::I64, [1]), |x| {
        w.assign(w.get() + 1.0)?;
        Ok(x)
    })?;
    step.run(Tensor::from([0i64]))?;
    assert_eq!(sum.get().to_vec::<f32>()?, [3.0]);
    Ok(())
}
