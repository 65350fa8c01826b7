//! A program for any size and one for a known size use the same algorithms and agree to the bit.

use kiln::{
    CompileOptions, Conv, DType, Layout, Precision, Result, Spec, Tensor, Var, compile_with, grad,
};
use kiln_plan::{Algorithm, Plan};

fn data(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * 1.7 + 0.3).sin()).collect();
    Tensor::from_slice(&values, shape)
}

/// The algorithms of a plan's steps, with the symbols' values taken from the shapes of the inputs of `known`.
fn algorithms(plan: &Plan, known: &Plan) -> Vec<Algorithm> {
    let value = |s: &kiln_plan::Symbol| {
        let shape = &known.inputs[s.input as usize].shape;
        shape[s.axis as usize].as_const().unwrap()
    };
    let values: Vec<i64> = plan.symbols.iter().map(value).collect();
    let steps = plan.prepare.iter().chain(&plan.run);
    let by = steps.filter_map(|s| plan.kernels[s.kernel as usize].computed_by(&values));
    by.collect()
}

/// Calls [`same_in`] with channels first.
fn same(
    name: &str,
    any: Spec,
    shapes: &[&[usize]],
    f: impl Fn(Tensor) -> Result<Vec<Tensor>>,
) -> Result<Vec<Algorithm>> {
    same_in(Layout::ChannelsFirst, name, any, shapes, f)
}

/// Compares a function of a tensor compiled for any size with the same function compiled for each of these shapes,
/// and returns the algorithms used.
fn same_in(
    layout: Layout,
    name: &str,
    any: Spec,
    shapes: &[&[usize]],
    f: impl Fn(Tensor) -> Result<Vec<Tensor>>,
) -> Result<Vec<Algorithm>> {
    // For open sizes, the cost of each layout is estimated.
    let options = CompileOptions {
        layout,
        ..CompileOptions::default()
    };
    let any = compile_with(any, &options, &f)?;
    let mut seen = Vec::new();
    for shape in shapes {
        let x = data(shape);
        let known = compile_with(&x, &options, &f)?;
        let results = [any.run(&x)?, known.run(&x)?];
        let [any_bits, known_bits] = results.map(|all| -> Vec<Vec<u32>> {
            let bits = |t: &Tensor| {
                t.to_vec::<f32>()
                    .unwrap()
                    .into_iter()
                    .map(f32::to_bits)
                    .collect()
            };
            all.iter().map(bits).collect()
        });
        assert!(any_bits == known_bits, "{name} of {shape:?}");
        let (any, known) = (any.plan(), known.plan());
        let by = algorithms(known, known);
        // A symbol is at least 2, so for a size of 1 the program was compiled again.
        if !shape.contains(&1) {
            assert_eq!(algorithms(any, known), by, "{name} of {shape:?}");
        }
        seen.extend(by);
    }
    Ok(seen)
}

#[test]
fn products_for_any_number_of_rows() -> Result<()> {
    let shapes: Vec<[usize; 2]> = [1, 2, 3, 31, 64, 67, 511, 512, 513, 700]
        .map(|m| [m, 67])
        .into();
    let shapes: Vec<&[usize]> = shapes.iter().map(|s| &s[..]).collect();
    let rows = || Spec::new(DType::F32, ("rows", 67));
    let wide = Var::new(data(&[67, 90]))?;
    let by = same("a parameter", rows(), &shapes, |x| {
        Ok(vec![x.matmul(wide.get()).relu()])
    })?;
    assert!(by.iter().all(|by| *by == Algorithm::Packed), "{by:?}");
    let narrow = Var::new(data(&[67, 7]))?;
    let by = same("a narrow one", rows(), &shapes, |x| {
        Ok(vec![x.matmul(narrow.get())])
    })?;
    assert!(!by.contains(&Algorithm::Packed), "{by:?}");
    let column = Var::new(data(&[67, 1]))?;
    let by = same("a vector", rows(), &shapes, |x| {
        Ok(vec![x.matmul(column.get()).exp()])
    })?;
    assert!(by.iter().all(|by| *by == Algorithm::Vector), "{by:?}");
    same("its transpose", rows(), &shapes, |x| {
        Ok(vec![x.t().matmul(&x)])
    })?;
    same("rows and their softmax", rows(), &shapes, |x| {
        Ok(vec![x.matmul(wide.get()).softmax(1)])
    })?;
    same("gradients", rows(), &shapes, |x| {
        let x = x.detach().requires_grad_(true);
        let w = wide.get().detach().requires_grad_(true);
        let y = x.matmul(&w).tanh();
        Ok(grad((&y * y.detach()).sum(()), [&x, &w])?.into())
    })?;
    Ok(())
}

#[test]
fn convolutions_for_any_size() -> Result<()> {
    let sizes = [
        [1, 7, 7],
        [2, 9, 5],
        [3, 1, 13],
        [2, 14, 1],
        [2, 33, 31],
        [5, 40, 64],
    ];
    // Groups, input channels and filters per group, and stride.
    let cases: [([usize; 4], usize, usize); 6] = [
        ([1, 3, 20, 3], 1, 1),
        ([1, 16, 5, 3], 2, 1),
        ([1, 14, 9, 1], 1, 0),
        ([2, 13, 4, 5], 1, 2),
        ([6, 1, 1, 3], 1, 1),
        ([6, 1, 1, 5], 2, 2),
    ];
    for ([groups, cin, cout, kernel], stride, padding) in cases {
        let channels = groups * cin;
        let shapes = sizes.map(|[n, h, w]| [n, channels, h, w]);
        let shapes: Vec<&[usize]> = shapes.iter().map(|s| &s[..]).collect();
        let options = || {
            Conv::new()
                .stride(stride)
                .padding(padding)
                .groups(groups as i64)
        };
        let w = data(&[groups * cout, cin, kernel, kernel]);
        let name = format!("{groups} x {cin}:{cout} by {kernel}, step {stride}");
        let any = || Spec::new(DType::F32, ("images", channels, "h", "w"));
        let by = same(&name, any(), &shapes, |x| {
            Ok(vec![x.conv2d_with(&w, options()).relu()])
        })?;
        assert!(by.contains(&Algorithm::Direct), "{name}: {by:?}");
        same(&format!("gradients of {name}"), any(), &shapes, |x| {
            let x = x.detach().requires_grad_(true);
            let w = w.detach().requires_grad_(true);
            let y = x.conv2d_with(&w, options());
            Ok(grad((&y * y.detach()).sum(()), [&x, &w])?.into())
        })?;
    }
    Ok(())
}

#[test]
fn convolutions_with_channels_last_for_any_size() -> Result<()> {
    let shapes: [[usize; 4]; 4] = [
        [1, 96, 7, 7],
        [2, 96, 14, 13],
        [3, 96, 1, 2],
        [2, 96, 31, 5],
    ];
    let shapes: Vec<&[usize]> = shapes.iter().map(|s| &s[..]).collect();
    let any = || Spec::new(DType::F32, ("images", 96, "h", "w"));
    let w = Var::new(data(&[112, 96, 3, 3]))?;
    let first = Var::new(data(&[96, 96, 1, 1]))?;
    let last = Layout::ChannelsLast;
    let by = same_in(last, "3 by 3", any(), &shapes, |x| {
        let x = x.conv2d(first.get()).relu();
        let y = x.conv2d_with(w.get(), Conv::new().padding(1)).relu();
        Ok(vec![y.sum((2, 3))])
    })?;
    assert!(by.contains(&Algorithm::Winograd2), "{by:?}");
    // Weights that are inputs of a run would be transformed in each run.
    let by = same_in(last, "of given weights", any(), &shapes, |x| {
        let x = x.conv2d(first.get()).relu();
        let w = w.get() * x.sum(()).tanh();
        Ok(vec![x.conv2d_with(&w, Conv::new().padding(1)).sum((2, 3))])
    })?;
    assert!(!by.contains(&Algorithm::Winograd2), "{by:?}");
    Ok(())
}

#[test]
fn sums_of_products_are_computed_as_such_where_that_is_asked_for() -> Result<()> {
    let first = Var::new(data(&[64, 24, 1, 1]))?;
    let w = Var::new(data(&[64, 64, 3, 3]))?;
    let x = data(&[2, 24, 15, 14]);
    let run = |precision| -> Result<(Vec<f32>, Vec<Algorithm>)> {
        let options = CompileOptions {
            layout: Layout::ChannelsLast,
            precision,
            ..CompileOptions::default()
        };
        let f = |x: Tensor| {
            let x = x.conv2d(first.get()).relu();
            let y = x.conv2d_with(w.get(), Conv::new().padding(1));
            y.relu().sum((2, 3))
        };
        let f = compile_with(&x, &options, f)?;
        Ok((f.run(&x)?.to_vec()?, algorithms(f.plan(), f.plan())))
    };
    let (exact, sums) = run(Precision::Exact)?;
    let (fast, transformed) = run(Precision::Default)?;
    assert!(!sums.contains(&Algorithm::Winograd2), "{sums:?}");
    assert!(
        transformed.contains(&Algorithm::Winograd2),
        "{transformed:?}"
    );
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
    assert!(exact.iter().zip(&fast).all(close));
    Ok(())
}
