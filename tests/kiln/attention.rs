//! Attention on the CPU and its gradients: one kernel each, which never holds all scores.

use crate::vector;
use kiln::{
    Attention, Backward, DType, Grad, Result, Spec, Tensor, cat, compile, grad, grad_with, no_grad,
};

/// Sizes: batch, heads, queries, keys, width, columns of the value.
type Sizes = [usize; 6];

const SIZES: [Sizes; 9] = [
    [1, 1, 1, 1, 1, 1],
    [2, 3, 5, 7, 11, 13],
    [1, 2, 131, 129, 8, 5],
    [2, 1, 17, 300, 64, 64],
    [1, 1, 260, 1031, 3, 2],
    [1, 2, 3, 0, 4, 5],
    [1, 2, 0, 3, 4, 5],
    [2, 2, 3, 4, 0, 5],
    [2, 2, 3, 4, 5, 0],
];

/// The options of a case other than the sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    causal: bool,
    /// 0: none, 1: bool, 2: added numbers, some -inf; both leave some rows without a key.
    mask: usize,
    /// True if the operands are not stored row by row.
    strided: bool,
    /// True if the result has an epilogue.
    epilogue: bool,
}

/// The visible keys: all, the previous ones, or those that a mask selects.
const MASKS: [Case; 4] = {
    let none = Case {
        causal: false,
        mask: 0,
        strided: false,
        epilogue: false,
    };
    [
        none,
        Case {
            causal: true,
            ..none
        },
        Case { mask: 1, ..none },
        Case { mask: 2, ..none },
    ]
};

fn attention(x: &[Tensor], case: Case) -> Tensor {
    let turned = |t: &Tensor| match case.strided {
        true => t.transpose(1, 2),
        false => t.clone(),
    };
    let (q, k, v) = (turned(&x[0]), turned(&x[1]), turned(&x[2]));
    let y = q.scaled_dot_product_attention_with(
        &k,
        &v,
        Attention::new().attn_mask(x.get(3)).is_causal(case.causal),
    );
    match case.epilogue {
        true => y.gelu() * 0.5 + 1.0,
        false => y,
    }
}

fn operands([b, h, l, s, e, w]: Sizes, case: Case) -> Vec<Tensor> {
    let random = |rows: usize, columns: usize| match case.strided {
        true => Tensor::randn([b, rows, h, columns], DType::F32),
        false => Tensor::randn([b, h, rows, columns], DType::F32),
    };
    let mut x = vec![random(l, e), random(s, e), random(s, w)];
    let seen = || Tensor::rand([b, 1, l, s], DType::F32).gt(0.6);
    match case.mask {
        1 => x.push(seen()),
        2 => {
            x.push(Tensor::randn([l, s], DType::F32).masked_fill(seen().i(0).i(0), -f32::INFINITY))
        }
        _ => {}
    }
    x
}

/// Floats in another dtype; masks of bools unchanged.
fn floats_as(x: &Tensor, dtype: DType) -> Tensor {
    match x.dtype().is_float() {
        true => x.to_dtype(dtype),
        false => x.clone(),
    }
}

/// The result of the kernel, and the result in f64, which is computed from single ops.
fn both(x: &[Tensor], case: Case) -> Result<(Vec<f32>, Vec<f64>)> {
    let program = compile(x, |x| no_grad(|| attention(&x, case)))?;
    let kernels = &program.explain().kernels;
    let empty = program.explain().rewrites.iter().any(|r| r.rule == "empty");
    assert!(
        empty || kernels.iter().any(|k| k.name.contains("attention")),
        "{}",
        program.explain()
    );
    let y = program.run(x)?.to_vec::<f32>()?;
    let wide: Vec<Tensor> = x.iter().map(|x| floats_as(x, DType::F64)).collect();
    Ok((y, attention(&wide, case).to_vec::<f64>()?))
}

/// Compares to a few roundings of the largest element; a NaN must be NaN in both.
fn assert_agree(x: &[Tensor], case: Case, about: &str) -> Result<()> {
    let (y, expected) = both(x, case)?;
    assert_eq!(y.len(), expected.len());
    let finite = expected.iter().filter(|e| e.is_finite());
    let scale = finite.fold(1e-30f64, |m, e| m.max(e.abs()));
    for (i, (a, e)) in y.iter().zip(&expected).enumerate() {
        let right = match e.is_finite() {
            true => (f64::from(*a) - e).abs() <= 2e-6 * scale,
            false => e.is_nan() == a.is_nan() && (a.is_nan() || f64::from(*a) == *e),
        };
        assert!(right, "{about} {case:?}: element {i} is {a}, not {e}");
    }
    Ok(())
}

#[test]
fn every_size_mask_and_layout_gives_what_f64_gives() -> Result<()> {
    for size in SIZES {
        for i in 0..16 {
            let case = Case {
                strided: i / 4 % 2 == 1,
                epilogue: i / 8 == 1,
                ..MASKS[i % 4]
            };
            assert_agree(&operands(size, case), case, &format!("{size:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn what_is_not_finite_stays_so() -> Result<()> {
    // One element of one operand, also beyond the keys that a causal row sees.
    for (operand, at) in [(0, 0), (1, 3), (2, 1), (2, 99)] {
        for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
            for case in MASKS {
                let mut x = operands([1, 1, 20, 20, 5, 5], case);
                let shape = x[operand].shape()?;
                let mut values = x[operand].to_vec::<f32>()?;
                values[at] = bad;
                x[operand] = vector(&values).reshape(shape);
                assert_agree(&x, case, &format!("operand {operand} has {bad} at {at}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn rows_of_infinite_scores_have_weights_only_where_keys_are_hidden() -> Result<()> {
    for bad in [0.5, f32::INFINITY] {
        for case in MASKS {
            let mut x = operands([1, 1, 4, 6, 1, 3], case);
            x[0] = vector(&[1.0, f32::INFINITY, -f32::INFINITY, 2.0]).reshape([1, 1, 4, 1]);
            x[1] = -x[1].abs() - 0.1;
            let value = vector(&[bad, 1.0, 2.0]).reshape([1, 1, 1, 3]);
            x[2] = kiln::cat(&[&value, &x[2].i((.., .., 1..))], 2);
            assert_agree(&x, case, &format!("a value of {bad}"))?;
        }
    }
    Ok(())
}

#[test]
fn threads_and_sharing_heads_change_nothing() -> Result<()> {
    let case = Case::default();
    let x = operands([2, 4, 150, 150, 16, 16], case);
    let grouped = |x: &[Tensor]| {
        let (k, v) = (x[1].i((.., ..2)), x[2].i((.., ..2)));
        x[0].scaled_dot_product_attention_with(&k, &v, Attention::new().enable_gqa(true))
    };
    let all = |t: &Tensor| t.i((.., ..2)).repeat_interleave(2, 1);
    let repeated = attention(&[x[0].clone(), all(&x[1]), all(&x[2])], case).to_vec::<f32>()?;
    assert_eq!(grouped(&x).to_vec::<f32>()?, repeated);
    let before = kiln::threads();
    for threads in [1, 3] {
        kiln::set_threads(threads);
        assert_eq!(grouped(&x).to_vec::<f32>()?, repeated, "{threads} threads");
    }
    kiln::set_threads(before);
    Ok(())
}

/// The gradients of query, key and value for the gradient `g` of the result.
fn gradients(x: &[Tensor], g: &Tensor, case: Case) -> Vec<Tensor> {
    let mut leaves: Vec<Tensor> = x.iter().map(Tensor::detach).collect();
    for leaf in &mut leaves[..3] {
        *leaf = leaf.clone().requires_grad_(true);
    }
    let y = attention(&leaves, case);
    y.backward_with(Backward::new().gradient(g)).unwrap();
    leaves[..3].iter().map(|x| x.grad().unwrap()).collect()
}

/// Compares gradients with a tolerance of `part` of the largest element of each, or of the products that it is a
/// difference of: with one key, the gradients of query and key are zero.
fn assert_gradients_agree(x: &[Tensor], case: Case, part: f64, about: &str) -> Result<()> {
    let g = Tensor::randn(attention(x, case).shape()?, DType::F32).to_dtype(x[0].dtype());
    let mut operands = x.to_vec();
    operands.push(g.clone());
    let program = compile(&operands, |mut x: Vec<Tensor>| {
        let g = x.pop().unwrap();
        gradients(&x, &g, case)
    })?;
    let text = program.explain().to_string();
    let none = operands.iter().any(|x| x.dims().iter().any(|d| d.is(0)));
    assert!(none || text.contains("attention_grad"), "{text}");
    let found = program.run(&operands)?;
    let wide = |x: &Tensor| floats_as(x, DType::F64);
    let x: Vec<Tensor> = x.iter().map(wide).collect();
    let largest = |x: &Tensor| -> Result<f64> {
        let finite = x.to_vec::<f64>()?.into_iter().filter(|x| x.is_finite());
        Ok(finite.fold(0.0, |m, x| f64::max(m, x.abs())))
    };
    let products = largest(&wide(&g))? * largest(&x[2])? * largest(&x[0])?.max(largest(&x[1])?);
    for (i, (a, e)) in found.iter().zip(gradients(&x, &wide(&g), case)).enumerate() {
        assert_eq!(a.shape()?, e.shape()?);
        let (a, e) = (a.to_dtype(DType::F64).to_vec::<f64>()?, e.to_vec::<f64>()?);
        let finite = e.iter().filter(|e| e.is_finite());
        let scale = finite.fold(products.max(1e-3), |m, e| m.max(e.abs()));
        for (at, (a, e)) in a.iter().zip(&e).enumerate() {
            let right = match e.is_finite() {
                true => (a - e).abs() <= part * scale,
                false => !a.is_finite(),
            };
            assert!(
                right,
                "{about} {case:?}: element {at} of gradient {i} is {a}, not {e}"
            );
        }
    }
    Ok(())
}

#[test]
fn gradients_of_every_size_mask_and_layout_are_those_of_f64() -> Result<()> {
    for size in SIZES {
        for i in 0..8 {
            let case = Case {
                strided: i / 4 == 1,
                ..MASKS[i % 4]
            };
            let x = operands(size, case);
            assert_gradients_agree(&x, case, 4e-6, &format!("{size:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn halves_are_computed_in_f32() -> Result<()> {
    for (dtype, unit) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        for (size, i) in [
            ([2, 3, 5, 7, 11, 13], 0),
            ([1, 2, 131, 129, 8, 5], 1),
            ([1, 2, 40, 33, 4, 4], 3),
        ] {
            for strided in [false, true] {
                let case = Case {
                    strided,
                    epilogue: i == 0,
                    ..MASKS[i]
                };
                let halves = |x: &Tensor| floats_as(x, dtype);
                let x: Vec<Tensor> = operands(size, case).iter().map(halves).collect();
                let plain = Case {
                    epilogue: false,
                    ..case
                };
                assert_gradients_agree(&x, plain, 2.0 * unit, &format!("{dtype} {size:?}"))?;
                let program = compile(&x, |x| no_grad(|| attention(&x, case)))?;
                let text = program.explain().to_string();
                assert!(text.contains("attention"), "{text}");
                let y = program.run(&x)?.to_dtype(DType::F64).to_vec::<f64>()?;
                let wide: Vec<Tensor> = x.iter().map(|x| floats_as(x, DType::F64)).collect();
                let expected = attention(&wide, case).to_vec::<f64>()?;
                let scale = expected.iter().fold(1e-3f64, |m, e| m.max(e.abs()));
                for (a, e) in y.iter().zip(&expected) {
                    assert!(
                        (a - e).abs() <= unit * scale,
                        "{dtype} {case:?}: {a}, not {e}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_of_what_is_not_finite_are_not() -> Result<()> {
    for (operand, at) in [(0, 0), (1, 3), (2, 1), (2, 99)] {
        for bad in [f32::NAN, f32::INFINITY] {
            for case in MASKS {
                let mut x = operands([1, 1, 20, 20, 5, 5], case);
                let shape = x[operand].shape()?;
                let mut values = x[operand].to_vec::<f32>()?;
                values[at] = bad;
                x[operand] = vector(&values).reshape(shape);
                let about = format!("operand {operand} has {bad} at {at}");
                assert_gradients_agree(&x, case, 4e-6, &about)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_training_step_stores_no_scores() -> Result<()> {
    let peak = |length: usize| -> Result<usize> {
        let x = Tensor::randn([1, 2, length, 16], DType::F32);
        let program = compile(
            (&x, &x, &x, &x),
            |(q, k, v, g): (Tensor, Tensor, Tensor, Tensor)| gradients(&[q, k, v], &g, MASKS[1]),
        )?;
        let memory = program.explain().memory.unwrap();
        Ok(memory.peak + memory.outputs)
    };
    let (short, long) = (peak(512)?, peak(2048)?);
    // The peak is proportional to the length, and less than one matrix of scores per head.
    assert!(long <= 4 * short + (1 << 16), "{short} and {long}");
    assert!(long < 2048 * 2048 * 4, "{long}");
    Ok(())
}

#[test]
fn gradients_do_not_depend_on_threads() -> Result<()> {
    let before = kiln::threads();
    for (shape, case) in [
        ([2, 4, 150, 150, 16, 16], MASKS[0]),
        ([1, 1, 700, 300, 8, 8], MASKS[1]),
    ] {
        let x = operands(shape, case);
        let g = Tensor::randn(attention(&x, case).shape()?, DType::F32);
        let all = || -> Result<Vec<Vec<f32>>> {
            gradients(&x, &g, case).iter().map(Tensor::to_vec).collect()
        };
        let first = all()?;
        for threads in [1, 3] {
            kiln::set_threads(threads);
            assert!(all()? == first, "{threads} threads");
        }
        kiln::set_threads(before);
    }
    Ok(())
}

/// Attention to identity values, which returns the weights.
fn weights(q: &Tensor, k: &Tensor, causal: bool, p: f64) -> Tensor {
    let keys = k.dims()[k.ndim() - 2].as_const().unwrap();
    let one = Tensor::eye(keys, q.dtype());
    q.scaled_dot_product_attention_with(k, &one, Attention::new().dropout_p(p).is_causal(causal))
}

#[test]
fn dropout_is_of_the_weights() -> Result<()> {
    let (q, k) = (
        Tensor::randn([2, 3, 41, 8], DType::F64),
        Tensor::randn([2, 3, 50, 8], DType::F64),
    );
    for causal in [false, true] {
        let all = weights(&q, &k, causal, 0.0).to_vec::<f64>()?;
        let some = weights(&q, &k, causal, 0.25).to_vec::<f64>()?;
        let (mut kept, mut there) = (0, 0);
        for (a, s) in all.iter().zip(&some).filter(|(a, _)| **a != 0.0) {
            assert!(*s == 0.0 || (s * 0.75 - a).abs() < 1e-12, "{s} of {a}");
            there += 1;
            kept += (*s != 0.0) as usize;
        }
        let share = kept as f64 / there as f64;
        assert!((share - 0.75).abs() < 0.03, "{share} kept");
        let none = weights(&q, &k, causal, 1.0).to_vec::<f64>()?;
        assert!(none.iter().all(|w| *w == 0.0));
    }
    assert!(weights(&q, &k, false, 1.5).to_vec::<f64>().is_err());
    // The generator is seeded in each call, so that differences are those of one function.
    let v = Tensor::randn([2, 3, 50, 4], DType::F64);
    let loss = |[q, k, v]: [Tensor; 3]| {
        kiln::with_seed(7, || {
            q.scaled_dot_product_attention_with(
                &k,
                &v,
                Attention::new().dropout_p(0.5).is_causal(true),
            )
            .square()
            .sum(())
        })
    };
    let short = |x: &Tensor| x.narrow(-2, 0, 5).narrow(1, 0, 1);
    let (q, k, v) = (short(&q), short(&k), short(&v));
    let bounds = kiln::GradCheck::new().atol(1e-6).rtol(1e-5);
    kiln::gradcheck_with(loss, [&q, &k, &v], bounds)
}

/// Decoding: one query attends to a cache, which grows by a key and a value per step.
#[test]
fn a_growing_cache_is_read_by_one_program() -> Result<()> {
    for (dtype, part, heads) in [(DType::F32, 2e-6, 4), (DType::BF16, 8e-3, 2)] {
        let past = || Spec::new(dtype, (1, heads, "past", 16));
        let one = |heads: i64| Spec::new(dtype, (1, heads, 1, 16));
        // Several query heads share one key head if there are fewer key heads.
        let options = || Attention::new().enable_gqa(true);
        let program = compile(
            (one(4), one(heads), one(heads), past(), past()),
            |(q, k, v, past_k, past_v): (Tensor, Tensor, Tensor, Tensor, Tensor)| {
                let (k, v) = (cat(&[&past_k, &k], 2), cat(&[&past_v, &v], 2));
                (q.scaled_dot_product_attention_with(&k, &v, options()), k, v)
            },
        )?;
        let explained = program.explain();
        let names: Vec<&str> = explained.kernels.iter().map(|k| &k.name[..]).collect();
        assert_eq!(names.len(), 3, "two that grow the cache, and {names:?}");
        assert!(names.iter().any(|n| n.contains("attention")), "{names:?}");
        let random =
            |heads: i64, n: i64| Tensor::randn([1, heads, n, 16], DType::F32).to_dtype(dtype);
        let (mut k, mut v) = (random(heads, 1), random(heads, 1));
        for step in 0..40 {
            let (q, new_k, new_v) = (random(4, 1), random(heads, 1), random(heads, 1));
            let y;
            (y, k, v) = program.run((&q, &new_k, &new_v, &k, &v))?;
            assert_eq!(k.shape()?, [1, heads as usize, step + 2, 16]);
            let wide = |x: &Tensor| x.to_dtype(DType::F64);
            let expected =
                wide(&q).scaled_dot_product_attention_with(wide(&k), wide(&v), options());
            let (y, expected) = (wide(&y).to_vec::<f64>()?, expected.to_vec::<f64>()?);
            let scale = expected.iter().fold(1e-3f64, |m, e| m.max(e.abs()));
            for (a, e) in y.iter().zip(&expected) {
                assert!((a - e).abs() <= part * scale, "step {step}: {a} is not {e}");
            }
        }
    }
    Ok(())
}

/// In f64 both passes run as single ops, so their random numbers come from kernels of their own.
#[test]
fn dropout_of_kernels_is_that_of_their_parts() -> Result<()> {
    let options = |case: Case| Attention::new().dropout_p(0.3).is_causal(case.causal);
    let run = |x: &[Tensor], case: Case| -> Result<Vec<Vec<f64>>> {
        let leaf = |x: &Tensor| x.detach().requires_grad_(true);
        let leaves: Vec<Tensor> = x[..3].iter().map(leaf).collect();
        let [q, k, v] = &leaves[..] else {
            unreachable!()
        };
        // The random numbers of the weights may begin anywhere in a block of random words.
        let y = kiln::with_seed(7, || {
            let before = Tensor::rand([x[0].dims().len() + 1], DType::F32);
            let y = q.scaled_dot_product_attention_with(k, v, options(case).attn_mask(x.get(3)));
            before.to_vec::<f32>().map(|_| y)
        })?;
        y.square().sum(()).backward()?;
        let gradients = leaves.iter().map(|x| x.grad().unwrap());
        let all = std::iter::once(y).chain(gradients);
        all.map(|x| x.to_dtype(DType::F64).to_vec()).collect()
    };
    for (dtype, part) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        for size in [
            [2, 3, 5, 7, 11, 13],
            [1, 2, 131, 129, 8, 5],
            [1, 1, 33, 300, 4, 3],
        ] {
            for case in MASKS {
                let x: Vec<Tensor> = operands(size, case)
                    .iter()
                    .map(|x| floats_as(x, dtype))
                    .collect();
                let wide: Vec<Tensor> = x.iter().map(|x| floats_as(x, DType::F64)).collect();
                let (found, expected) = (run(&x, case)?, run(&wide, case)?);
                for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let scale = expected.iter().fold(1e-3f64, |m, e| m.max(e.abs()));
                    for (a, e) in found.iter().zip(expected) {
                        let about = format!("{dtype} {size:?} {case:?}, result {i}");
                        assert!((a - e).abs() <= part * scale, "{about}: {a} is not {e}");
                    }
                }
            }
        }
    }
    // One kernel each, in memory that grows with the length.
    let program = |length: usize| {
        let x = Tensor::randn([1, 2, length, 16], DType::F32);
        compile((&x, &x, &x), |(q, k, v): (Tensor, Tensor, Tensor)| {
            let [q, k, v] = [q, k, v].map(|x| x.requires_grad_(true));
            let y = q.scaled_dot_product_attention_with(&k, &v, options(MASKS[1]));
            y.square().sum(()).backward().unwrap();
            [q, k, v].map(|x| x.grad().unwrap())
        })
    };
    let (short, long) = (program(512)?, program(2048)?);
    let text = long.explain().to_string();
    assert!(
        text.contains("attention_grad") && !text.contains("softmax"),
        "{text}"
    );
    let (short, long) = (
        short.explain().memory.unwrap(),
        long.explain().memory.unwrap(),
    );
    assert!(
        long.peak <= 4 * short.peak + (1 << 16),
        "{} and {}",
        short.peak,
        long.peak
    );
    Ok(())
}

/// Second derivatives go through the single ops of the gradients, with and without dropout. A row whose keys are all
/// hidden has zero derivatives of every order.
#[test]
fn rows_that_see_nothing_have_derivatives_of_zero() -> Result<()> {
    for dtype in [DType::F64, DType::F32] {
        for adds in [false, true] {
            let random = |rows: usize| Tensor::randn([1, 1, rows, 3], dtype).requires_grad_(true);
            let x = [random(2), random(3), random(3)];
            let seen = Tensor::from_slice(&[0u8, 0, 0, 1, 0, 1], [2, 3]).to_dtype(DType::Bool);
            let mask = match adds {
                true => {
                    Tensor::zeros([2, 3], dtype).masked_fill(seen.logical_not(), f64::NEG_INFINITY)
                }
                false => seen,
            };
            let options = Attention::new().attn_mask(Some(&mask));
            let y = x[0].scaled_dot_product_attention_with(&x[1], &x[2], options);
            let slopes = grad_with(y.square().sum(()), &x, Grad::new().create_graph(true))?;
            let [q, k, v] = slopes.each_ref().map(|g| g.square().sum(()));
            let second = grad(q + k + v, &x)?;
            for (i, g) in slopes.iter().chain(&second).enumerate() {
                let g: Vec<f64> = g.to_dtype(DType::F64).to_vec()?;
                assert!(g.iter().all(|g| g.is_finite()), "{dtype} {adds} {i}: {g:?}");
                if i % 3 == 0 {
                    assert_eq!(g[..3], [0.0; 3], "{dtype} {adds} {i}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_have_derivatives() -> Result<()> {
    let slopes = |x: [Tensor; 3], mask: Option<&Tensor>, case: Case, p: f64| {
        let x = x.map(|x| match x.requires_grad() {
            true => x,
            false => x.requires_grad_(true),
        });
        kiln::with_seed(7, || {
            let options = Attention::new().dropout_p(p).is_causal(case.causal);
            let [q, k, v] = &x;
            let y = q.scaled_dot_product_attention_with(k, v, options.attn_mask(mask));
            let found = grad_with(y.square().sum(()), &x, Grad::new().create_graph(true));
            let [q, k, v] = found.unwrap().map(|g| g.square().sum(()));
            q + k + v
        })
    };
    for (i, case) in MASKS.into_iter().enumerate() {
        let p = if i % 2 == 1 { 0.4 } else { 0.0 };
        let x: Vec<Tensor> = operands([1, 2, 4, 5, 3, 2], case);
        let wide: Vec<Tensor> = x.iter().map(|x| floats_as(x, DType::F64)).collect();
        let bounds = kiln::GradCheck::new().atol(1e-5).rtol(1e-4);
        let mask = wide.get(3);
        let of_f64 = |x: [Tensor; 3]| slopes(x, mask, case, p);
        kiln::gradcheck_with(of_f64, [&wide[0], &wide[1], &wide[2]], bounds)?;
        let second = |x: &[Tensor]| -> Result<Vec<Vec<f64>>> {
            let leaves = [0, 1, 2].map(|i| x[i].detach().requires_grad_(true));
            let found = grad(slopes(leaves.clone(), x.get(3), case, p), &leaves)?;
            found
                .iter()
                .map(|g| g.to_dtype(DType::F64).to_vec())
                .collect()
        };
        for (found, expected) in second(&x)?.iter().zip(&second(&wide)?) {
            let scale = expected.iter().fold(1e-3f64, |m, e| m.max(e.abs()));
            for (a, e) in found.iter().zip(expected) {
                assert!((a - e).abs() <= 1e-4 * scale, "{case:?}: {a} is not {e}");
            }
        }
    }
    Ok(())
}
