//! Comparisons of a value with one that was chosen from it, as in the derivatives of extremes. Both must be the same
//! to the bit, wherever and however often they are computed.

use crate::is_alone;
use kiln::{
    Backward, CompileOptions, DType, Features, Tensor, checkpoint, compile, compile_with, keep,
    scan,
};

/// A function that chooses by comparison; each row has one gradient of 1 (or −1).
type Extreme = (&'static str, fn(&Tensor) -> Tensor);

const EXTREMES: [Extreme; 8] = [
    ("max", |y| y.max(1).0),
    ("min", |y| y.min(1).0),
    ("amax", |y| y.amax(1)),
    ("amin", |y| y.amin(1)),
    ("aminmax", |y| {
        let (low, high) = y.aminmax(1);
        high - low * 2.0
    }),
    ("infinity norm", |y| y.vector_norm(f64::INFINITY, 1)),
    ("cummax", |y| y.cummax(1).0),
    ("median", |y| y.median(1).0),
];

/// Work that a kernel fuses, and that other kernels may recompute.
const WORKS: [Extreme; 4] = [
    ("scaled and shifted", |x| x * 1.7 + 0.3),
    ("a product twice", |x| {
        let p = x * 1.7;
        &p + 0.3 + p.sin() * 0.0
    }),
    ("normalised", |x| {
        let centred = x - x.mean(keep(0));
        let spread = (x.var_with(keep(0), 0.0) + 1e-5).rsqrt();
        centred * spread * 1.3 + 0.1
    }),
    ("softened", |x| (x * 1.7 + 0.3).gelu() * 0.7 + x),
];

fn data(rows: usize, columns: usize, dtype: DType, seed: u64) -> Tensor {
    kiln::manual_seed(seed);
    let x = Tensor::randn([rows, columns], DType::F32).to_dtype(dtype);
    x.to_bytes().unwrap();
    x
}

/// The expected gradient: that of the extreme is computed for realised values, then propagated through the work.
fn expected(work: Extreme, extreme: Extreme, x: &Tensor) -> Vec<f32> {
    let x = x.detach().requires_grad_(true);
    let y = work.1(&x);
    let kept = y.detach();
    kept.to_bytes().unwrap();
    let leaf = kept.requires_grad_(true);
    extreme.1(&leaf).sum(()).backward().unwrap();
    let g = leaf.grad().unwrap();
    g.to_bytes().unwrap();
    y.backward_with(Backward::new().gradient(&g)).unwrap();
    values(&x.grad().unwrap())
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).to_vec().unwrap()
}

/// The distance of two gradients, relative to the largest element.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    let pairs = a.iter().zip(b).map(|(a, b)| (a - b).abs() / size);
    pairs.fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

/// The gradients, taken by `gradient`, that are wrong, among all works and extremes.
fn wrong(
    dtype: DType,
    sizes: &[[usize; 2]],
    gradient: impl Fn(Extreme, Extreme, &Tensor) -> Vec<f32>,
) -> Vec<String> {
    let tolerance = match dtype {
        DType::F32 => 1e-4,
        DType::F16 => 2e-2,
        _ => 1e-1,
    };
    let mut wrong = Vec::new();
    for (seed, &[rows, columns]) in sizes.iter().enumerate() {
        let x = data(rows, columns, dtype, seed as u64);
        // In f16 and bf16, rounding the mean can change which element is the largest.
        let halves = dtype != DType::F32;
        for work in WORKS
            .into_iter()
            .filter(|w| !(halves && w.0 == "normalised"))
        {
            for extreme in EXTREMES {
                let mut expected = expected(work, extreme, &x);
                let mut found = gradient(work, extreme, &x);
                if halves && extreme.0 == "infinity norm" {
                    // The kernel compares unrounded values: elements that are equal once rounded need not share the
                    // gradient.
                    let rows = expected.chunks_mut(columns).zip(found.chunks_mut(columns));
                    for (expected, found) in rows {
                        if expected.iter().filter(|g| **g != 0.0).count() > 1 {
                            expected.fill(0.0);
                            found.fill(0.0);
                        }
                    }
                }
                let far = distance(&found, &expected);
                if far.is_nan() || far > tolerance {
                    let (work, extreme) = (work.0, extreme.0);
                    wrong.push(format!(
                        "{extreme} of {work}, {rows}x{columns} {dtype}: {far}"
                    ));
                }
            }
        }
    }
    wrong
}

#[track_caller]
fn assert_none(wrong: &[String]) {
    let count = wrong.len();
    assert!(wrong.is_empty(), "{count} wrong:\n{}", wrong.join("\n"));
}

const SIZES: [[usize; 2]; 4] = [[16, 40], [64, 128], [3, 1000], [7, 13]];

fn backward(work: Extreme, extreme: Extreme, x: &Tensor) -> Vec<f32> {
    let leaf = x.detach().requires_grad_(true);
    extreme.1(&work.1(&leaf)).sum(()).backward().unwrap();
    values(&leaf.grad().unwrap())
}

#[test]
fn gradients_of_extremes_behind_fused_work() {
    // Levels are forced for the process, so this test re-runs itself alone.
    if !is_alone("compared::gradients_of_extremes_behind_fused_work", &[]) {
        return;
    }
    for level in Features::WIDTHS.into_iter().filter(|l| l.is_supported()) {
        Features::force(Some(level)).unwrap();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            assert_none(&wrong(dtype, &SIZES, backward));
        }
    }
}

/// The loss is read first, so that the backward pass is a program of its own.
#[test]
fn gradients_of_extremes_in_another_program() {
    assert_none(&wrong(DType::F32, &SIZES[..2], |work, extreme, x| {
        let leaf = x.detach().requires_grad_(true);
        let loss = extreme.1(&work.1(&leaf)).sum(());
        loss.to_vec::<f32>().unwrap();
        loss.backward().unwrap();
        values(&leaf.grad().unwrap())
    }));
}

#[test]
fn gradients_of_extremes_in_compiled_functions_and_within_a_budget() {
    assert_none(&wrong(DType::F32, &SIZES[..2], |work, extreme, x| {
        let program = move |x: Tensor| {
            let leaf = x.detach().requires_grad_(true);
            let loss = extreme.1(&work.1(&leaf)).sum(());
            loss.backward().unwrap();
            leaf.grad().unwrap()
        };
        let f = compile(x, program).unwrap();
        let unbound = values(&f.run(x).unwrap());
        let options = CompileOptions {
            memory_budget: Some(1 << 12),
            ..CompileOptions::default()
        };
        // If the budget can't be met there is nothing to compare.
        let Ok(bound) = compile_with(x, &options, program) else {
            return unbound;
        };
        let bound = values(&bound.run(x).unwrap());
        assert!(distance(&bound, &unbound) < 1e-4);
        unbound
    }));
}

#[test]
fn gradients_of_extremes_in_checkpoints() {
    assert_none(&wrong(DType::F32, &SIZES[..2], |work, extreme, x| {
        let leaf = x.detach().requires_grad_(true);
        let y = checkpoint(|x: Tensor| extreme.1(&work.1(&x)), leaf.clone());
        y.sum(()).backward().unwrap();
        values(&leaf.grad().unwrap())
    }));
}

/// The derivative of a step compares forward values, which are kept or recomputed with the same bits.
#[test]
fn gradients_of_extremes_in_loops() {
    for dtype in [DType::F32, DType::BF16] {
        assert_none(&wrong(dtype, &SIZES[..2], |work, extreme, x| {
            let leaf = x.detach().requires_grad_(true);
            let steps = leaf.unsqueeze(0);
            let start = Tensor::zeros([1], dtype);
            let (_, y) = scan(start, steps, |carried: Tensor, x: Tensor| {
                let y = extreme.1(&work.1(&x));
                (carried + y.sum(()).detach() * 0.0, y)
            });
            y.sum(()).backward().unwrap();
            values(&leaf.grad().unwrap())
        }));
    }
}
