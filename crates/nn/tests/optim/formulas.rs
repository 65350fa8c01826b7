//! Every rule against its formula in f64, over several steps, recorded lazily and compiled.

use crate::{assert_close, numbers};
use kiln_nn::optim::{Adagrad, Adam, AdamW, Optimizer, RMSprop, Rule, SGD};
use kiln_tensor::{DType, Error, Spec, Tensor, Var, compile};

const N: usize = 11;
const STEPS: usize = 7;

/// One element's value over the steps: from (t, p, g) and four moments that start at zero.
type Formula = dyn Fn(usize, f64, f64, &mut [f64; 4]) -> f64;

fn expected(formula: &Formula) -> Vec<Vec<f64>> {
    let mut p = numbers(1, N);
    let mut moments = vec![[0.0; 4]; N];
    (1..=STEPS)
        .map(|t| {
            let g = numbers(10 + t as u64, N);
            for i in 0..N {
                p[i] = formula(t, p[i], g[i], &mut moments[i]);
            }
            p.clone()
        })
        .collect()
}

/// The parameter after each step; the loss is `sum(p · g)`, whose gradient is `g`.
fn found(rule: impl Rule, dtype: DType, compiled: bool) -> Vec<Vec<f64>> {
    let start = Tensor::from_slice(&numbers(1, N), [N]).to_dtype(dtype);
    let p = Var::parameter(&start).unwrap();
    let mut optimizer = Optimizer::new([&p], rule).unwrap();
    let spec = Spec::new(dtype, [N]);
    let mut record = |g: &Tensor| {
        optimizer.zero_grad();
        (p.get() * g).sum(()).backward()?;
        optimizer.step()?;
        Ok::<_, Error>(Vec::<Tensor>::new())
    };
    let step = compiled.then(|| compile(spec, |g| record(&g)).unwrap());
    (1..=STEPS)
        .map(|t| {
            let g = Tensor::from_slice(&numbers(10 + t as u64, N), [N]).to_dtype(dtype);
            match &step {
                Some(step) => drop(step.run(&g).unwrap()),
                None => drop(record(&g).unwrap()),
            }
            p.get().to_dtype(DType::F64).to_vec::<f64>().unwrap()
        })
        .collect()
}

fn check<R: Rule + Clone>(
    rule: R,
    formula: impl Fn(usize, f64, f64, &mut [f64; 4]) -> f64 + 'static,
) {
    let expected = expected(&formula);
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5), (DType::BF16, 0.06)] {
        for compiled in [false, true] {
            let found = found(rule.clone(), dtype, compiled);
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(found, expected, tolerance);
            }
        }
    }
}

#[test]
fn sgd() {
    for (momentum, dampening, nesterov, weight_decay, maximize) in [
        (0.0, 0.0, false, 0.0, false),
        (0.9, 0.0, false, 0.01, false),
        (0.9, 0.3, false, 0.0, true),
        (0.8, 0.0, true, 0.02, false),
    ] {
        let rule = SGD::new()
            .lr(0.1)
            .momentum(momentum)
            .dampening(dampening)
            .nesterov(nesterov)
            .weight_decay(weight_decay)
            .maximize(maximize);
        check(rule, move |t, p, g, m| {
            let g = if maximize { -g } else { g } + weight_decay * p;
            m[0] = match t {
                1 => g,
                _ => momentum * m[0] + (1.0 - dampening) * g,
            };
            p - 0.1 * if nesterov { g + momentum * m[0] } else { m[0] }
        });
    }
}

fn adam_formula(
    (b1, b2): (f64, f64),
    eps: f64,
    amsgrad: bool,
    t: usize,
    g: f64,
    m: &mut [f64; 4],
) -> f64 {
    m[0] = b1 * m[0] + (1.0 - b1) * g;
    m[1] = b2 * m[1] + (1.0 - b2) * g * g;
    m[2] = m[2].max(m[1]);
    let v = if amsgrad { m[2] } else { m[1] };
    let (c1, c2) = (1.0 - b1.powi(t as i32), 1.0 - b2.powi(t as i32));
    m[0] / c1 / (v.sqrt() / c2.sqrt() + eps)
}

#[test]
fn adam_and_adamw() {
    for (amsgrad, maximize, weight_decay) in
        [(false, false, 0.0), (true, false, 0.05), (false, true, 0.1)]
    {
        let (betas, eps, lr) = ((0.8, 0.95), 1e-6, 0.05);
        let sign = if maximize { -1.0 } else { 1.0 };
        macro_rules! with_these {
            ($rule:ident) => {
                $rule::new()
                    .lr(lr)
                    .betas(betas)
                    .eps(eps)
                    .weight_decay(weight_decay)
                    .amsgrad(amsgrad)
                    .maximize(maximize)
            };
        }
        check(with_these!(Adam), move |t, p, g, m| {
            let g = sign * g + weight_decay * p;
            p - lr * adam_formula(betas, eps, amsgrad, t, g, m)
        });
        check(with_these!(AdamW), move |t, p, g, m| {
            let step = adam_formula(betas, eps, amsgrad, t, sign * g, m);
            p * (1.0 - lr * weight_decay) - lr * step
        });
    }
}

#[test]
fn rmsprop() {
    for (centered, momentum) in [(false, 0.0), (true, 0.0), (false, 0.7), (true, 0.7)] {
        let rule = RMSprop::new()
            .lr(0.02)
            .alpha(0.9)
            .eps(1e-3)
            .weight_decay(0.01)
            .momentum(momentum)
            .centered(centered)
            .maximize(false);
        check(rule, move |_, p, g, m| {
            let g = g + 0.01 * p;
            m[0] = 0.9 * m[0] + 0.1 * g * g;
            m[1] = 0.9 * m[1] + 0.1 * g;
            let second = m[0] - if centered { m[1] * m[1] } else { 0.0 };
            m[2] = momentum * m[2] + g / (second.sqrt() + 1e-3);
            p - 0.02 * m[2]
        });
    }
}

#[test]
fn adagrad() {
    for (lr_decay, start) in [(0.0, 0.0), (0.1, 0.5)] {
        let rule = Adagrad::new()
            .lr(0.1)
            .lr_decay(lr_decay)
            .weight_decay(0.01)
            .initial_accumulator_value(start)
            .eps(1e-5)
            .maximize(false);
        check(rule, move |t, p, g, m| {
            let g = g + 0.01 * p;
            m[0] = if t == 1 { start } else { m[0] } + g * g;
            p - 0.1 / (1.0 + (t as f64 - 1.0) * lr_decay) * g / (m[0].sqrt() + 1e-5)
        });
    }
}

#[test]
fn hyperparameters_out_of_range_are_named() {
    let p = crate::parameter(1, &[3]);
    let refused = |rule: Box<dyn Fn() -> Result<Optimizer, Error>>, name: &str| {
        let e = rule().err().unwrap();
        assert!(e.message().contains(name), "{e}");
        assert!(e.loc().file().ends_with("formulas.rs"), "{e}");
    };
    let (a, b, c, d) = (p.clone(), p.clone(), p.clone(), p.clone());
    refused(
        Box::new(move || Optimizer::new([&a], SGD::new().lr(-1.0))),
        "lr",
    );
    refused(
        Box::new(move || Optimizer::new([&b], SGD::new().nesterov(true))),
        "nesterov",
    );
    refused(
        Box::new(move || Optimizer::new([&c], Adam::new().betas((0.9, 1.0)))),
        "beta2",
    );
    refused(
        Box::new(move || Optimizer::new([&d, &d], SGD::new())),
        "more than once",
    );
}
