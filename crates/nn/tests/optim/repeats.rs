//! Updates that are recorded once for all parameters of a shape equal those that are recorded one by one.

use crate::{Net, random};
use kiln_nn::optim::*;
use kiln_tensor::{DType, Tensor, Var};

/// A rule whose updates are all recorded separately.
struct Each<R>(R);

impl<R: Rule> Rule for Each<R> {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        self.0.check(value)
    }

    fn scalars(&self, scalars: &mut Scalars) {
        self.0.scalars(scalars);
    }

    fn update(&self, u: &mut Update) -> Tensor {
        self.0.update(u)
    }

    fn repeats(&self) -> bool {
        false
    }
}

/// Returns the bits of parameters of several dtypes after some steps. Numbers change in between, and once a parameter
/// has no gradient.
fn trained(rule: impl Rule) -> Vec<u64> {
    let mut all = Net::new(5).all;
    let narrow = |dtype| Var::parameter(random(7, &[3, 5]).to_dtype(dtype)).unwrap();
    all.extend([DType::BF16, DType::F16, DType::F64].map(narrow));
    let mut optimizer = Optimizer::new(&all, rule).unwrap();
    for i in 0..6 {
        let decay = [0.0, 0.1, 0.2, 0.0, 0.0, 0.3][i];
        optimizer.set_lr(0.01 * (i + 1) as f64).unwrap();
        let group = &mut optimizer.groups_mut()[0];
        if group.number("weight_decay").is_some() {
            group.set_number("weight_decay", decay).unwrap();
        }
        optimizer.zero_grad();
        for (at, p) in all.iter().enumerate().filter(|(at, _)| (i, *at) != (2, 1)) {
            let g = random((10 * i + at) as u64, &p.shape().unwrap()).to_dtype(p.dtype());
            p.set_grad(&g).unwrap();
        }
        optimizer.step().unwrap();
    }
    let bits = |p: &Var| p.get().to_dtype(DType::F64).to_vec::<f64>().unwrap();
    let values = all.iter().flat_map(bits);
    values.map(f64::to_bits).collect()
}

fn check<R: Rule + Clone>(rule: R) {
    let name = format!("{:?}", rule.describe());
    assert_eq!(trained(rule.clone()), trained(Each(rule)), "{name}");
}

#[test]
fn to_the_bit() {
    check(SGD::new());
    check(SGD::new().momentum(0.9).dampening(0.2).maximize(true));
    check(SGD::new().momentum(0.9).nesterov(true));
    for amsgrad in [false, true] {
        check(Adam::new().amsgrad(amsgrad));
        check(AdamW::new().amsgrad(amsgrad).maximize(amsgrad));
        check(NAdam::new().decoupled_weight_decay(amsgrad));
        check(
            RAdam::new()
                .betas((0.9, 0.5))
                .decoupled_weight_decay(amsgrad),
        );
    }
    check(RMSprop::new());
    check(RMSprop::new().momentum(0.9).centered(true));
    check(Adagrad::new());
    check(Adadelta::new());
    check(Adamax::new());
    check(ASGD::new().t0(2.0));
    check(Rprop::new());
    check(Adafactor::new());
}
