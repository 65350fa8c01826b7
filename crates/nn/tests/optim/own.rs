//! A user-defined optimiser: the features that it gets without code of its own.

use crate::{Net, random, train};
use kiln_nn::optim::{AdamW, Description, Optimizer, Rule, Scalars, Update};
use kiln_tensor::{DType, Spec, Tensor, Var, compile};

/// Lion (Chen et al., 2023), with a rate that warms up.
#[derive(Clone)]
struct Lion {
    lr: f64,
    betas: (f64, f64),
    weight_decay: f64,
}

impl Rule for Lion {
    fn describe(&self) -> Description {
        Description::new("Lion")
            .number("lr", self.lr)
            .fractions(["beta1", "beta2"], self.betas)
            .number("weight_decay", self.weight_decay)
            .decoupled(true)
            .state("exp_avg")
    }

    fn scalars(&self, s: &mut Scalars) {
        s.set("rate", s.number("lr") * (s.step() / 4.0).clamp_max(1.0));
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let (g, m) = (u.gradient(), u.state("exp_avg"));
        let direction = (&g + (&m - &g) * u.number("beta1")).sign();
        u.set("exp_avg", &g + (m - &g) * u.number("beta2"));
        u.parameter() - direction * u.number("rate")
    }
}

const LION: Lion = Lion {
    lr: 0.01,
    betas: (0.9, 0.99),
    weight_decay: 0.1,
};

#[test]
fn it_follows_its_formula() {
    let p = crate::parameter(1, &[5]);
    let mut wanted: Vec<f64> = p.get().to_dtype(DType::F64).to_vec().unwrap();
    let mut optimizer = Optimizer::new(&p, LION).unwrap();
    let mut m = [0.0; 5];
    for t in 1..=6u64 {
        let g = random(10 + t, &[5]);
        p.set_grad(&g).unwrap();
        optimizer.step().unwrap();
        let g: Vec<f64> = g.to_dtype(DType::F64).to_vec().unwrap();
        for i in 0..5 {
            let rate = 0.01 * (t as f64 / 4.0).min(1.0);
            let direction = (0.9 * m[i] + 0.1 * g[i]).signum();
            wanted[i] = wanted[i] * (1.0 - 0.01 * 0.1) - rate * direction;
            m[i] = 0.99 * m[i] + 0.01 * g[i];
        }
        let found: Vec<f64> = p.get().to_dtype(DType::F64).to_vec().unwrap();
        crate::assert_close(&found, &wanted, 1e-6);
    }
}

#[test]
fn it_has_groups_and_goes_on_from_a_saved_state() {
    let make = |net: &Net| {
        let mut optimizer = Optimizer::new(&net.all[..2], LION).unwrap();
        let other = Lion { lr: 0.1, ..LION };
        optimizer.add_group(&net.all[2..], other).unwrap();
        optimizer
    };
    let (whole, half) = (Net::new(1), Net::new(50));
    let mut optimizer = make(&whole);
    assert_eq!(optimizer.lr(), [0.01, 0.1]);
    train(&whole, &mut optimizer, 0..3);
    let saved = optimizer.state_dict().unwrap();
    let names: Vec<&String> = saved.state[&3].keys().collect();
    assert_eq!(names, ["exp_avg", "step"]);
    for (to, from) in half.all.iter().zip(&whole.all) {
        to.assign(from.get().detach()).unwrap();
    }
    let mut again = make(&half);
    again.load_state_dict(&saved).unwrap();
    train(&whole, &mut optimizer, 3..6);
    train(&half, &mut again, 3..6);
    assert_eq!(half.values(), whole.values());
}

/// Returns the number of matrices that a compiled step writes in place, and of all that it writes.
fn in_place(rule: impl Rule) -> (usize, usize) {
    let shapes: [&[usize]; 4] = [&[64, 32], &[64], &[32, 64], &[32]];
    let all: Vec<Var> = shapes
        .iter()
        .zip(1..)
        .map(|(s, i)| crate::parameter(i, s))
        .collect();
    let net = Net { all };
    let mut optimizer = Optimizer::new(&net.all, rule).unwrap();
    let step = compile(Spec::new(DType::F32, [2, 32]), |x| {
        optimizer.zero_grad();
        let loss = net.loss(&x);
        loss.backward()?;
        optimizer.step()?;
        Ok(loss.detach())
    })
    .unwrap();
    let outputs = step.plan().outputs.iter().filter(|o| o.shape.len() == 2);
    let donors: Vec<bool> = outputs.map(|o| o.donor.is_some()).collect();
    // Numbers that change are data: no run compiles, and each takes effect.
    let x = random(3, &[2, 32]);
    let before = net.values();
    optimizer.set_lr(0.0).unwrap();
    step.run(&x).unwrap();
    assert_eq!(net.values(), before);
    optimizer.set_lr(0.1).unwrap();
    step.run(&x).unwrap();
    assert_ne!(net.values(), before);
    (donors.iter().filter(|d| **d).count(), donors.len())
}

#[test]
fn its_state_is_written_in_place_and_its_numbers_are_data() {
    // Two matrices, and one moment for each; AdamW keeps two.
    assert_eq!(in_place(LION), (4, 4));
    assert_eq!(in_place(AdamW::new()), (6, 6));
}

#[test]
fn names_that_there_are_not_are_errors() {
    struct Wrong(fn(&mut Update) -> Tensor);
    impl Rule for Wrong {
        fn describe(&self) -> Description {
            Description::new("Wrong").number("lr", 0.1).state("exp_avg")
        }

        fn update(&self, u: &mut Update) -> Tensor {
            (self.0)(u)
        }
    }
    let cases: [(Wrong, &str); 3] = [
        (
            Wrong(|u| u.parameter() * u.number("rate")),
            "no number \"rate\"",
        ),
        (Wrong(|u| u.state("moment")), "no \"moment\" is kept"),
        (
            Wrong(|u| {
                u.set("moment", u.gradient());
                u.parameter()
            }),
            "no \"moment\" is kept",
        ),
    ];
    for (wrong, wanted) in cases {
        let p = crate::parameter(1, &[3]);
        let before: Vec<f32> = p.get().to_vec().unwrap();
        let mut optimizer = Optimizer::new(&p, wrong).unwrap();
        p.set_grad(random(2, &[3])).unwrap();
        let e = optimizer.step().unwrap_err();
        assert!(e.message().contains(wanted), "{e}");
        assert_eq!(p.get().to_vec::<f32>().unwrap(), before);
        assert!(optimizer.state_dict().unwrap().state.is_empty());
    }
}
