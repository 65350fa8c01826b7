//! Attention on the CPU, where nothing else reads the scores: one kernel that never holds all of them.

use crate::vector;
use kiln::{Attention, DType, Result, Tensor, compile, no_grad};

/// Sizes: batch, heads, rows that ask, keys, width, columns of the value.
type Sizes = [usize; 6];

/// What is asked beside the sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    causal: bool,
    /// 0: none, 1: bool, 2: added numbers, some -inf; both leave some rows without a key.
    mask: usize,
    /// Operands that lie in memory otherwise than row by row.
    strided: bool,
    /// Work on the result.
    epilogue: bool,
}

/// Which keys are seen: all, those in front, those that a mask says.
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

/// The result, as one kernel, and what f64 gives, which is taken apart.
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
    let wide = |t: &Tensor| match t.dtype() {
        DType::F32 => t.to_dtype(DType::F64),
        _ => t.clone(),
    };
    let wide: Vec<Tensor> = x.iter().map(wide).collect();
    Ok((y, attention(&wide, case).to_vec::<f64>()?))
}

/// Compares to a few roundings of the largest element; what is not a number must be none in both.
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
    let sizes: [Sizes; 9] = [
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
    for size in sizes {
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
    // One element of one operand; behind what a causal row sees as well.
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

/// Attention to identity values, which gives the weights.
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
    // Of the same numbers, so that differences are those of a function.
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
