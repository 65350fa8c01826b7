//! Updates that are recorded once for all parameters of a shape are those that are recorded one by one.

use crate::{Net, random};
use kiln_nn::optim::{Adagrad, Adam, AdamW, Coefficients, Numbers, Optimizer, RmsProp, Rule, Sgd};
use kiln_tensor::{DType, Tensor, Var};

/// A rule of which each update is recorded as it is.
struct Each<R>(R);

impl<R: Rule> Rule for Each<R> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn numbers(&self) -> Vec<(&'static str, f64)> {
        self.0.numbers()
    }

    fn flags(&self) -> Vec<(&'static str, bool)> {
        self.0.flags()
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        self.0.check(value)
    }

    fn moments(&self) -> Vec<(&'static str, f64)> {
        self.0.moments()
    }

    fn coefficients(&self, numbers: &Numbers, step: &Tensor) -> Vec<Tensor> {
        self.0.coefficients(numbers, step)
    }

    fn update(
        &self,
        numbers: &Numbers,
        coefficients: Coefficients,
        parameter: &Tensor,
        gradient: &Tensor,
        moments: &mut [Tensor],
    ) -> Tensor {
        let (p, g) = (parameter, gradient);
        self.0.update(numbers, coefficients, p, g, moments)
    }
}

/// The bits of parameters of several dtypes after some steps. Numbers change on the way, and once a parameter has
/// no gradient.
fn trained(rule: impl Rule) -> Vec<u64> {
    let mut all = Net::new(5).all;
    let narrow = |dtype| Var::parameter(random(7, &[3, 5]).to_dtype(dtype)).unwrap();
    all.extend([DType::BF16, DType::F16, DType::F64].map(narrow));
    let mut optimizer = Optimizer::new(&all, rule).unwrap();
    for i in 0..6 {
        let decay = [0.0, 0.1, 0.2, 0.0, 0.0, 0.3][i];
        optimizer.set_lr(0.01 * (i + 1) as f64).unwrap();
        optimizer.groups_mut()[0]
            .set_number("weight_decay", decay)
            .unwrap();
        optimizer.zero_grad();
        for (at, p) in all.iter().enumerate().filter(|(at, _)| (i, *at) != (2, 1)) {
            let g = random((10 * i + at) as u64, &p.shape()).to_dtype(p.dtype());
            p.set_grad(Some(&g)).unwrap();
        }
        optimizer.step().unwrap();
    }
    let bits = |p: &Var| p.get().to_dtype(DType::F64).to_vec::<f64>().unwrap();
    let values = all.iter().flat_map(bits);
    values.map(f64::to_bits).collect()
}

fn check<R: Rule + Clone>(rule: R) {
    let name = rule.name();
    assert_eq!(trained(rule.clone()), trained(Each(rule)), "{name}");
}

#[test]
fn to_the_bit() {
    check(Sgd::default());
    check(Sgd {
        momentum: 0.9,
        dampening: 0.2,
        maximize: true,
        ..Sgd::default()
    });
    check(Sgd {
        momentum: 0.9,
        nesterov: true,
        ..Sgd::default()
    });
    for amsgrad in [false, true] {
        check(Adam {
            amsgrad,
            ..Adam::default()
        });
        check(AdamW {
            amsgrad,
            maximize: amsgrad,
            ..AdamW::default()
        });
    }
    check(RmsProp::default());
    check(Adagrad::default());
}
