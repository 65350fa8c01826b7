//! Groups, missing gradients, saving and loading.

use crate::{Net, parameter, random, train};
use kiln_nn::optim::{Adam, AdamW, Optimizer, OptimizerState, RMSprop, Rule, SGD};
use kiln_tensor::{Tensor, Var};

#[test]
fn training_goes_on_from_a_loaded_state_as_if_it_had_not_stopped() {
    fn check(rule: impl Rule + Clone) {
        let net = Net::new(1);
        let mut optimizer = Optimizer::new(&net.all, rule.clone()).unwrap();
        train(&net, &mut optimizer, 0..3);
        optimizer.set_lr(0.03).unwrap();
        let saved = optimizer.state_dict().unwrap();
        let weights: Vec<Tensor> = net.all.iter().map(Var::get).collect();
        train(&net, &mut optimizer, 3..6);

        let again = Net::new(50);
        let mut optimizer = Optimizer::new(&again.all, rule).unwrap();
        for (v, w) in again.all.iter().zip(&weights) {
            v.assign(w.detach()).unwrap();
        }
        optimizer.load_state_dict(&saved).unwrap();
        assert_eq!(optimizer.lr(), [0.03]);
        train(&again, &mut optimizer, 3..6);
        assert_eq!(again.values(), net.values());
    }
    check(AdamW::new().amsgrad(true));
    check(SGD::new().momentum(0.9).dampening(0.2));
    check(RMSprop::new().momentum(0.5).centered(true));
}

#[test]
fn the_state_has_the_layout_of_pytorch() {
    let net = Net::new(1);
    let mut optimizer = Optimizer::new(&net.all[..2], Adam::new()).unwrap();
    let slow = Adam::new().lr(1e-5);
    optimizer.add_group(&net.all[2..], slow).unwrap();
    assert!(optimizer.state_dict().unwrap().state.is_empty());
    train(&net, &mut optimizer, 0..2);
    let dict = optimizer.state_dict().unwrap();
    assert_eq!(dict.param_groups[1].params, [2, 3]);
    assert_eq!(dict.param_groups[1].numbers["lr"], 1e-5);
    assert!(!dict.param_groups[1].flags["amsgrad"]);
    let names: Vec<&str> = dict.state[&2].keys().map(String::as_str).collect();
    assert_eq!(names, ["exp_avg", "exp_avg_sq", "step"]);
    assert_eq!(dict.state[&2]["step"].item::<f32>().unwrap(), 2.0);
    assert_eq!(dict.state[&2]["exp_avg"].shape().unwrap(), [5, 13]);
}

#[test]
fn a_state_that_does_not_fit_changes_nothing() {
    let net = Net::new(1);
    let mut optimizer = Optimizer::new(&net.all, Adam::new()).unwrap();
    train(&net, &mut optimizer, 0..1);
    let good = optimizer.state_dict().unwrap();
    let read = |o: &Optimizer| {
        let dict: OptimizerState = o.state_dict().unwrap();
        dict.state[&0]["exp_avg"].to_vec::<f32>().unwrap()
    };
    let before = read(&optimizer);
    let refused = |change: &dyn Fn(&mut OptimizerState), why: &str| {
        let mut bad = good.clone();
        for state in bad.state.values_mut() {
            let zeros = state["exp_avg"].zeros_like();
            state.insert("exp_avg".into(), zeros);
        }
        change(&mut bad);
        let mut target = Optimizer::new(&net.all, Adam::new()).unwrap();
        target.load_state_dict(&good).unwrap();
        let e = target.load_state_dict(&bad).unwrap_err();
        assert!(e.message().contains(why), "{e}");
        assert_eq!(read(&target), before);
    };
    refused(&|d| drop(d.param_groups.pop()), "groups");
    refused(&|d| d.param_groups[0].params.truncate(3), "3 parameters");
    refused(
        &|d| drop(d.state.get_mut(&3).unwrap().remove("exp_avg_sq")),
        "exp_avg_sq",
    );
    refused(
        &|d| *d.param_groups[0].flags.get_mut("amsgrad").unwrap() = true,
        "amsgrad",
    );
    let wrong = random(3, &[2]);
    refused(
        &|d| {
            drop(
                d.state
                    .get_mut(&3)
                    .unwrap()
                    .insert("exp_avg".into(), wrong.clone()),
            )
        },
        "[2]",
    );
}

#[test]
fn a_parameter_without_gradient_is_skipped_with_its_count() {
    let (a, b) = (parameter(1, &[3]), parameter(2, &[3]));
    let mut optimizer = Optimizer::new([&a, &b], Adam::new().weight_decay(0.1)).unwrap();
    let before = b.get().to_vec::<f32>().unwrap();
    for _ in 0..2 {
        optimizer.zero_grad();
        a.get().square().sum(()).backward().unwrap();
        optimizer.step().unwrap();
    }
    assert_eq!(b.get().to_vec::<f32>().unwrap(), before);
    (a.get() * b.get()).sum(()).backward().unwrap();
    optimizer.step().unwrap();
    assert_ne!(b.get().to_vec::<f32>().unwrap(), before);
    let dict = optimizer.state_dict().unwrap();
    let steps = |i: usize| dict.state[&i]["step"].item::<f32>().unwrap();
    assert_eq!((steps(0), steps(1)), (3.0, 1.0));
}

#[test]
fn frozen_parameters_stay_and_can_be_thawed() {
    let net = Net::new(7);
    for p in &net.all[..2] {
        p.requires_grad_(false).unwrap();
    }
    let mut optimizer = Optimizer::new(&net.all, Adam::new()).unwrap();
    let before: Vec<Vec<f32>> = net.all.iter().map(|p| p.get().to_vec().unwrap()).collect();
    train(&net, &mut optimizer, 0..2);
    let moved = |i: usize| net.all[i].get().to_vec::<f32>().unwrap() != before[i];
    assert_eq!([0, 1, 2, 3].map(moved), [false, false, true, true]);
    net.all[0].requires_grad_(true).unwrap();
    train(&net, &mut optimizer, 2..3);
    assert_eq!([0, 1, 2, 3].map(moved), [true, false, true, true]);
}

#[test]
fn groups_have_numbers_of_their_own() {
    let (a, b) = (parameter(1, &[1]), parameter(2, &[1]));
    let sgd = |lr: f64| SGD::new().lr(lr);
    let mut optimizer = Optimizer::new([&a], sgd(1.0)).unwrap();
    optimizer.add_group([&b], sgd(0.5)).unwrap();
    let start = [&a, &b].map(|v| v.get().item::<f32>().unwrap());
    (a.get() + b.get()).sum(()).backward().unwrap();
    optimizer.step().unwrap();
    let now = [&a, &b].map(|v| v.get().item::<f32>().unwrap());
    assert_eq!(now, [start[0] - 1.0, start[1] - 0.5]);
    optimizer.groups_mut()[1].set_number("lr", 0.0).unwrap();
    optimizer.step().unwrap();
    assert_eq!(b.get().item::<f32>().unwrap(), now[1]);
    let e = optimizer.groups_mut()[1]
        .set_number("beta1", 0.0)
        .unwrap_err();
    assert!(e.message().contains("beta1"), "{e}");
    optimizer.groups_mut()[1]
        .set_number("momentum", 0.9)
        .unwrap_err();
}
