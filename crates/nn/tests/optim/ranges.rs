//! Numbers out of range are refused from every source, and change nothing.

use crate::parameter;
use kiln_nn::optim::*;
use kiln_tensor::Var;

/// The values that PyTorch refuses, and NaN, which it accepts in places.
const BELOW: [f64; 3] = [-1.0, f64::NEG_INFINITY, f64::NAN];
const NOT_A_FRACTION: [f64; 5] = [-0.1, 1.0, 1.5, f64::INFINITY, f64::NAN];

fn w() -> Var {
    parameter(1, &[3])
}

/// Makes a rule with a number.
type Make = Box<dyn Fn(f64) -> kiln_tensor::Result<Optimizer>>;

/// Returns the numbers of each rule, and the values that are refused.
fn table() -> Vec<(Make, &'static str, Vec<f64>)> {
    macro_rules! rows {
        ($($rule:ident { $($field:ident: $bad:expr),* })*) => {
            vec![$($((
                Box::new(|v: f64| Optimizer::new(w(), $rule::new().$field(v))) as Make,
                stringify!($field),
                $bad.to_vec(),
            )),*),*]
        };
    }
    rows! {
        SGD { lr: BELOW, momentum: BELOW, weight_decay: BELOW }
        Adam { lr: BELOW, eps: BELOW, weight_decay: BELOW }
        AdamW { lr: BELOW, eps: BELOW, weight_decay: BELOW }
        RMSprop { lr: BELOW, alpha: BELOW, eps: BELOW, momentum: BELOW, weight_decay: BELOW }
        Adagrad { lr: BELOW, lr_decay: BELOW, eps: BELOW, weight_decay: BELOW,
            initial_accumulator_value: BELOW }
        Adadelta { lr: BELOW, rho: BELOW, eps: BELOW, weight_decay: BELOW }
        Adafactor { lr: BELOW, weight_decay: BELOW }
        Adamax { lr: BELOW, eps: BELOW, weight_decay: BELOW }
        ASGD { lr: BELOW, lambd: BELOW, alpha: BELOW, weight_decay: BELOW }
        NAdam { lr: BELOW, eps: BELOW, weight_decay: BELOW, momentum_decay: BELOW }
        RAdam { lr: BELOW, eps: BELOW, weight_decay: BELOW }
        Rprop { lr: BELOW }
    }
}

#[test]
fn optimisers_refuse_numbers_out_of_range_when_made_and_when_changed() {
    for (make, name, bad) in table() {
        for v in bad {
            let e = make(v)
                .err()
                .unwrap_or_else(|| panic!("{name} of {v} is accepted"));
            assert!(e.message().contains(name), "{e}");
            let mut optimizer = make(0.5).unwrap();
            let group = &mut optimizer.groups_mut()[0];
            if group.number(name).is_none() {
                continue; // counts at the beginning alone
            }
            let e = group.set_number(name, v).unwrap_err();
            assert!(e.message().contains(name), "{e}");
            assert_eq!(group.number(name), Some(0.5));
        }
        make(0.0).unwrap();
        make(1.0).unwrap();
    }
    for v in NOT_A_FRACTION {
        for betas in [(v, 0.9), (0.9, v)] {
            assert!(Optimizer::new([&w()], Adam::new().betas(betas)).is_err());
            assert!(Optimizer::new([&w()], AdamW::new().betas(betas)).is_err());
        }
        let mut adam = Optimizer::new([&w()], Adam::new()).unwrap();
        assert!(adam.groups_mut()[0].set_number("beta2", v).is_err());
    }
    let nesterov = SGD::new().momentum(0.9).nesterov(true);
    let mut sgd = Optimizer::new([&w()], nesterov).unwrap();
    assert!(sgd.groups_mut()[0].set_number("dampening", 0.1).is_err());
}

#[test]
fn a_learning_rate_out_of_range_leaves_every_group_as_it_is() {
    let mut optimizer = Optimizer::new([&w()], SGD::new().lr(0.1)).unwrap();
    optimizer.add_group([&w()], SGD::new().lr(0.2)).unwrap();
    for lr in BELOW {
        let e = optimizer.set_lr(lr).unwrap_err();
        assert!(e.message().contains("lr must not be negative"), "{e}");
        assert!(e.loc().file().ends_with("ranges.rs"), "{e}");
        assert_eq!(optimizer.lr(), [0.1, 0.2]);
    }
    let mut state = optimizer.state_dict().unwrap();
    state.param_groups[0].numbers.insert("lr".to_string(), 0.7);
    state.param_groups[1]
        .numbers
        .insert("lr".to_string(), f64::NAN);
    assert!(optimizer.load_state_dict(&state).is_err());
    assert_eq!(optimizer.lr(), [0.1, 0.2]);

    // The first group would accept this rate, the second would not.
    let schedule = LambdaLR::new(|epoch| if epoch == 1 { f64::NAN } else { 1.0 });
    let mut scheduler = Scheduler::new(&mut optimizer, schedule).unwrap();
    let before = scheduler.state_dict();
    let e = scheduler.step(&mut optimizer).unwrap_err();
    assert!(e.message().contains("at epoch 1: lr"), "{e}");
    assert_eq!(scheduler.state_dict(), before);
    assert_eq!(optimizer.lr(), [0.1, 0.2]);
}

#[test]
fn schedules_refuse_what_pytorch_refuses() {
    fn refused(schedule: impl Schedule + 'static, name: &str) {
        let mut optimizer = Optimizer::new([&w()], SGD::new()).unwrap();
        let before = optimizer.lr();
        let e = Scheduler::new(&mut optimizer, schedule).err();
        let e = e.unwrap_or_else(|| panic!("{name} is accepted"));
        assert!(e.message().contains(name), "{e}");
        assert_eq!(optimizer.lr(), before);
    }
    for factor in [-1.0, 1.5, f64::NAN] {
        refused(ConstantLR::new().factor(factor), "factor");
        refused(LinearLR::new().start_factor(factor), "start_factor");
        refused(LinearLR::new().end_factor(factor), "end_factor");
        refused(
            OneCycleLR {
                pct_start: factor,
                ..OneCycleLR::new(0.1, 5)
            },
            "pct_start",
        );
    }
    refused(LinearLR::new().start_factor(0.0), "start_factor");
    refused(OneCycleLR::new(0.1, 0), "total_steps");
    refused(OneCycleLR::new(-0.1, 5), "lr");
    let restarts = |t_0, t_mult| {
        CosineAnnealingWarmRestarts::new(t_0)
            .t_mult(t_mult)
            .eta_min(0.0)
    };
    refused(restarts(0, 1), "t_0");
    refused(restarts(1, 0), "t_mult");
    let parts = |n: usize| -> Vec<Box<dyn Schedule>> {
        (0..n)
            .map(|_| Box::new(ExponentialLR::new(0.9)) as _)
            .collect()
    };
    refused(
        SequentialLR {
            schedules: parts(2),
            milestones: vec![2, 3],
        },
        "one more schedule",
    );
    let inner: Vec<Box<dyn Schedule>> = vec![Box::new(restarts(0, 1))];
    refused(
        SequentialLR {
            schedules: inner,
            milestones: vec![],
        },
        "t_0",
    );

    let mut optimizer = Optimizer::new([&w()], SGD::new()).unwrap();
    for factor in [1.0, 1.5, -1.0, f64::NAN] {
        let mut plateau = ReduceLROnPlateau::new().factor(factor);
        assert!(plateau.step(&mut optimizer, 1.0).is_err(), "{factor}");
    }
}
