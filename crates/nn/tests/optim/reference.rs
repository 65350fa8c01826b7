//! PyTorch's results, from reference.json, which reference.py makes.

use crate::{assert_close, numbers, parameter};
use kiln_nn::optim::*;
use kiln_tensor::{DType, Int, MaybeInt, Result, Tensor, Var, cat};
use serde_json::Value;
use std::collections::BTreeMap;

fn reference(part: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("reference.json")).unwrap();
    all[part].as_array().unwrap().clone()
}

fn list(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

const SHAPES: [&[usize]; 3] = [&[2, 3], &[3], &[]];

fn drawn(seed: u64, shape: &[usize]) -> Tensor {
    Tensor::from_slice(&numbers(seed, shape.iter().product()), shape)
}

fn parameters() -> Vec<Var> {
    let make = |(shape, seed): (&&[usize], u64)| Var::parameter(drawn(seed, shape)).unwrap();
    SHAPES.iter().zip(1..).map(make).collect()
}

fn values(parameters: &[Var]) -> Vec<f64> {
    let read = |p: &Var| p.get().to_vec::<f64>().unwrap();
    parameters.iter().flat_map(read).collect()
}

/// Makes an optimiser of a class from named arguments; each name must be known.
fn optimizer(parameters: &[Var], class: &str, options: &Value) -> Optimizer {
    let mut given: BTreeMap<String, Value> = serde_json::from_value(options.clone()).unwrap();
    macro_rules! classes {
        ($($rule:ident: $($field:ident)*;)*) => {
            match class {
                $(stringify!($rule) => {
                    let mut rule = $rule::new();
                    $(if let Some(value) = given.remove(stringify!($field)) {
                        rule.$field = serde_json::from_value(value).unwrap();
                    })*
                    assert!(given.is_empty(), "{class} takes no {given:?}");
                    Optimizer::new(parameters, rule).unwrap()
                })*
                other => panic!("{other} is not here"),
            }
        };
    }
    classes! {
        SGD: lr momentum dampening weight_decay nesterov maximize;
        Adam: lr betas eps weight_decay decoupled_weight_decay amsgrad maximize;
        AdamW: lr betas eps weight_decay amsgrad maximize;
        RMSprop: lr alpha eps weight_decay momentum centered maximize;
        Adagrad: lr lr_decay weight_decay initial_accumulator_value eps maximize;
        Adadelta: lr rho eps weight_decay maximize;
        Adafactor: lr beta2_decay eps d weight_decay maximize;
        Adamax: lr betas eps weight_decay maximize;
        ASGD: lr lambd alpha t0 weight_decay maximize;
        NAdam: lr betas eps weight_decay momentum_decay decoupled_weight_decay maximize;
        RAdam: lr betas eps weight_decay decoupled_weight_decay maximize;
        Rprop: lr etas step_sizes maximize;
    }
}

fn step(optimizer: &mut Optimizer, parameters: &[Var], step: u64) {
    if step == 3 {
        let lr = optimizer.lr()[0] / 2.0;
        optimizer.set_lr(lr).unwrap();
    }
    for (i, p) in (0..).zip(parameters) {
        let g = drawn(10 * step + i + 1, &p.shape().unwrap());
        p.set_grad((step, i).ne(&(3, 1)).then_some(&g)).unwrap();
    }
    optimizer.step().unwrap();
}

#[test]
fn every_rule_goes_where_pytorch_goes_and_keeps_what_it_keeps() {
    let mut seen = std::collections::BTreeSet::new();
    for case in reference("rules") {
        let class = case["rule"].as_str().unwrap();
        seen.insert(class.to_string());
        let parameters = parameters();
        let mut optimizer = optimizer(&parameters, class, &case["options"]);
        for i in 1..=6 {
            step(&mut optimizer, &parameters, i);
            if let Some(at) = [1, 6].iter().position(|at| *at == i) {
                eprintln!("{class} {}, step {i}", case["options"]);
                assert_close(&values(&parameters), &list(&case["seen"][at]), 1e-10);
            }
        }
        let mut state = optimizer.state_dict().unwrap().state.remove(&0).unwrap();
        assert_eq!(state.remove("step").unwrap().item::<f64>().unwrap(), 6.0);
        for (name, wanted) in case["state"].as_object().unwrap() {
            if name != "step" {
                let found = state.remove(name).unwrap_or_else(|| panic!("no {name}"));
                assert_close(&found.to_vec::<f64>().unwrap(), &list(wanted), 1e-10);
            }
        }
        assert!(state.is_empty(), "{class} has no {:?}", state.keys());
    }
    assert_eq!(seen.len(), 12);
}

#[test]
fn every_rule_goes_on_from_a_saved_state_to_the_bit() {
    for case in reference("rules") {
        let class = case["rule"].as_str().unwrap();
        let make = |parameters: &[Var]| optimizer(parameters, class, &case["options"]);
        let whole = parameters();
        let mut optimizer = make(&whole);
        let (half, mut again) = (parameters(), None);
        for i in 1..=6 {
            step(&mut optimizer, &whole, i);
            if let Some(again) = &mut again {
                step(again, &half, i);
            }
            if i == 4 {
                for (to, from) in half.iter().zip(&whole) {
                    to.assign(from.get().detach()).unwrap();
                }
                let mut fresh = make(&half);
                let saved = optimizer.state_dict().unwrap();
                fresh.load_state_dict(&saved).unwrap();
                again = Some(fresh);
            }
        }
        let bits = |p: &[Var]| values(p).into_iter().map(f64::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&half), bits(&whole), "{class} {}", case["options"]);
    }
}

/// A chain of Rosenbrock's valleys.
fn valleys(parameters: &[Var]) -> Result<Tensor> {
    let x = cat(parameters.iter().map(|p| p.get().reshape([-1])), 0);
    let (a, b) = (x.narrow(0, 0, 9), x.narrow(0, 1, 9));
    let loss = ((b - a.square()).square() * 10.0 + (1.0 - a).square()).sum(());
    loss.check()?;
    Ok(loss)
}

fn lbfgs(parameters: &[Var], options: &Value) -> Optimizer {
    let number = |name: &str| options[name].as_f64();
    let mut rule = LBFGS::new().max_iter(5).lr(number("lr").unwrap_or(1.0));
    rule.max_eval = MaybeInt(options["max_eval"].as_i64());
    rule.history_size = Int(options["history_size"].as_i64().unwrap_or(100));
    rule.maximize = options["maximize"].as_bool().unwrap_or(false);
    rule.line_search_fn =
        (options["line_search_fn"] == "strong_wolfe").then_some(LineSearch::StrongWolfe);
    Optimizer::new(parameters, rule).unwrap()
}

/// Makes a step, and returns the number of evaluations of the loss.
fn descend(optimizer: &mut Optimizer, parameters: &[Var], options: &Value) -> u64 {
    let mut evaluations = 0;
    let loss = optimizer.step_with(|| {
        evaluations += 1;
        let loss = match options["maximize"] == true {
            true => -valleys(parameters)?,
            false => valleys(parameters)?,
        };
        loss.backward()?;
        Ok(loss)
    });
    assert!(loss.unwrap().item::<f64>().unwrap().is_finite());
    evaluations
}

#[test]
fn lbfgs_goes_where_pytorch_goes_and_on_from_a_saved_state() {
    for case in reference("lbfgs") {
        let (parameters, options) = (parameters(), &case["options"]);
        let mut optimizer = lbfgs(&parameters, options);
        let mut evaluations = 0;
        for (i, wanted) in case["seen"].as_array().unwrap().iter().enumerate() {
            evaluations += descend(&mut optimizer, &parameters, options);
            eprintln!("{options}, step {i}");
            assert_close(&values(&parameters), &list(wanted), 1e-7);
            // Another optimiser with the same state makes the next step.
            let saved = optimizer.state_dict().unwrap();
            optimizer = lbfgs(&parameters, options);
            optimizer.load_state_dict(&saved).unwrap();
        }
        assert_eq!(Some(evaluations), case["func_evals"].as_u64());
        let kept = &optimizer.state_dict().unwrap().state[&0]["func_evals"];
        assert_eq!(kept.item::<f64>().unwrap(), evaluations as f64);
    }
}

#[test]
fn lbfgs_that_fails_goes_back() {
    let p = Var::parameter(Tensor::from([1.0f32, 2.0])).unwrap();
    let mut optimizer =
        Optimizer::new(&p, LBFGS::new().line_search_fn(LineSearch::StrongWolfe)).unwrap();
    let e = optimizer.step().unwrap_err();
    assert!(e.message().contains("step_with"), "{e}");
    let mut left = 3;
    let mut step = |optimizer: &mut Optimizer| {
        optimizer.step_with(|| {
            left -= 1;
            let loss = match left {
                0 => p.get().index_select(0, Tensor::from([7i64])).sum(()),
                _ => p.get().square().square().sum(()),
            };
            loss.backward()?;
            Ok(loss)
        })
    };
    let e = step(&mut optimizer).unwrap_err();
    assert!(e.message().contains('7'), "{e}");
    assert_eq!(p.get().to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert!(optimizer.state_dict().unwrap().state.is_empty());
    let before = step(&mut optimizer).unwrap();
    assert_eq!(before.item::<f32>().unwrap(), 17.0);
    assert!(
        p.get()
            .to_vec::<f32>()
            .unwrap()
            .iter()
            .all(|x| x.abs() < 1.0)
    );
    let e = optimizer
        .add_group(parameter(1, &[2]), SGD::new())
        .unwrap_err();
    assert!(e.message().contains("other groups"), "{e}");
    let mut saved = optimizer.state_dict().unwrap();
    let state = saved.state.get_mut(&0).unwrap();
    state.insert("d".into(), Tensor::zeros([3], DType::F64));
    optimizer.load_state_dict(&saved).unwrap();
    let e = step(&mut optimizer).unwrap_err();
    assert!(e.message().contains("parameters of 2 numbers"), "{e}");
}

#[test]
fn steps_with_a_closure_are_those_without() {
    let run = |closure: bool| {
        let parameters = parameters();
        let mut optimizer = Optimizer::new(&parameters, AdamW::new().lr(0.1)).unwrap();
        for _ in 0..3 {
            let loss = || {
                let loss = valleys(&parameters)?;
                loss.backward()?;
                Ok(loss)
            };
            match closure {
                true => drop(optimizer.step_with(loss).unwrap()),
                false => {
                    optimizer.zero_grad();
                    loss().unwrap();
                    optimizer.step().unwrap();
                }
            }
        }
        values(&parameters)
    };
    assert_eq!(run(true), run(false));
}

/// Makes one of the schedules by its name in the reference.
fn scheduler(name: &str, optimizer: &mut Optimizer) -> Result<Scheduler> {
    let cyclic = || CyclicLR::new().base_lr(0.1).max_lr(0.9).step_size_up(3);
    let exp_range = cyclic().mode(CyclicMode::ExpRange).gamma(0.9);
    let cycle = CyclicMode::OfCycle(|x| 1.0 / (5.0 * x).sqrt());
    let iterations = CyclicMode::OfIterations(|x| 1.0 / (1.0 + x));
    let shrink = MultiplicativeLR::new(|e| 1.0 - 0.1 * e as f64 / (e + 1) as f64);
    let square = PolynomialLR::new().total_iters(6).power(2.0);
    let warm_up = LinearLR::new().start_factor(0.1).total_iters(4);
    match name {
        "multiplicative" => Scheduler::new(optimizer, shrink),
        "polynomial" => Scheduler::new(optimizer, square),
        "polynomial of default" => Scheduler::new(optimizer, PolynomialLR::new()),
        "triangular" => Scheduler::new(optimizer, cyclic()),
        "triangular2" => {
            let halved = cyclic().mode(CyclicMode::Triangular2);
            Scheduler::new(optimizer, halved.step_size_down(2))
        }
        "exp_range" => Scheduler::new(optimizer, exp_range.base_momentum(0.6).max_momentum(0.7)),
        "of cycle" => Scheduler::new(optimizer, cyclic().mode(cycle).cycle_momentum(false)),
        "of iterations" => {
            Scheduler::new(optimizer, cyclic().mode(iterations).cycle_momentum(false))
        }
        "chained" => {
            let all: Vec<Box<dyn Schedule>> =
                vec![Box::new(square), Box::new(MultiplicativeLR::new(|_| 0.9))];
            Scheduler::chained(optimizer, all)
        }
        "sequential" => Scheduler::new(
            optimizer,
            SequentialLR {
                schedules: vec![
                    Box::new(warm_up),
                    Box::new(PolynomialLR::new().total_iters(6)),
                ],
                milestones: vec![4],
            },
        ),
        "constant with warm-up" => Scheduler::new(optimizer, ConstantScheduleWithWarmup::new(4)),
        "linear with warm-up" => {
            let schedule = LinearScheduleWithWarmup::new(10).num_warmup_steps(4);
            Scheduler::new(optimizer, schedule)
        }
        "cosine with warm-up" => {
            let schedule = CosineScheduleWithWarmup::new(10).num_warmup_steps(4);
            Scheduler::new(optimizer, schedule)
        }
        other => panic!("{other} is not here"),
    }
}

#[test]
fn every_schedule_has_the_rates_of_pytorch() {
    for case in reference("schedules") {
        let name = case["name"].as_str().unwrap();
        let rule = SGD::new().lr(0.8).momentum(0.5);
        let mut optimizer = Optimizer::new(parameter(1, &[2]), rule).unwrap();
        let mut scheduler = scheduler(name, &mut optimizer).unwrap();
        let (mut rates, mut momentum) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            rates.push(optimizer.lr()[0]);
            momentum.push(optimizer.groups()[0].number("momentum").unwrap());
            scheduler.step(&mut optimizer).unwrap();
        }
        eprintln!("{name}");
        assert_close(&rates, &list(&case["rates"]), 1e-11);
        assert_close(&momentum, &list(&case["momentum"]), 1e-11);
    }
}

#[test]
fn cyclic_rates_must_be_given() {
    let mut optimizer = Optimizer::new(parameter(1, &[2]), SGD::new()).unwrap();
    for (schedule, wanted) in [
        (CyclicLR::new().base_lr(0.1), "max_lr must be given"),
        (CyclicLR::new().max_lr(0.1), "base_lr must be given"),
        (
            CyclicLR::new().base_lr(0.1).max_lr(0.2).step_size_up(0),
            "step_size_up must be at least 1",
        ),
    ] {
        let e = Scheduler::new(&mut optimizer, schedule).err().unwrap();
        assert!(e.message().contains(wanted), "{e}");
    }
}
