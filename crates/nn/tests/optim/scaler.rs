//! Scaling of losses: skipped steps and scales compared with PyTorch's, and errors of calls out of order.

use crate::{Net, parameter, random};
use kiln_nn::amp::{GradScaler, Scaling};
use kiln_nn::optim::{Adafactor, AdamW, LBFGS, Optimizer, RMSprop, Rule, SGD, clip_grad_norm_};
use kiln_tensor::{
    Compiled, DType, Grad, Result, Spec, Tensor, Var, autocast, compile, grad_with, profiler,
    set_warning_hook,
};
use serde_json::Value;
use std::sync::{Arc, Mutex};

fn reference() -> Value {
    serde_json::from_str(include_str!("scaler.json")).unwrap()
}

fn floats(v: &Value) -> Vec<f64> {
    v.as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

/// See `scaler.py`.
fn factors(step: usize, overflows: &[f64]) -> Tensor {
    let by = 1.0 + (step % 3) as f32;
    let mut c = [0.5f32, -0.25, 1.5, -2.0].map(|c| c * by);
    if overflows.contains(&(step as f64)) {
        c[step % 4] = [f32::INFINITY, f32::NAN][step % 2];
    }
    Tensor::from(c)
}

fn weight() -> Var {
    Var::parameter(Tensor::from([0.3f32, -0.7, 1.1, 0.2])).unwrap()
}

fn scaler() -> GradScaler {
    GradScaler::with(Scaling::new().init_scale(1024.0).growth_interval(3)).unwrap()
}

fn step(w: &Var, c: &Tensor, scaler: &mut GradScaler, optimizer: &mut Optimizer) -> Result<()> {
    optimizer.zero_grad();
    let loss = (w.get() * c + 0.1 * w.get() * w.get()).sum(());
    scaler.scale(&loss).backward()?;
    scaler.step(optimizer)?;
    scaler.update()
}

/// Lazy steps, and one compiled function.
#[test]
fn steps_are_skipped_where_pytorch_skips_them() {
    fn check(name: &str, rule: impl Rule + Clone) {
        let reference = reference();
        let overflows = floats(&reference["overflows"]);
        let run = &reference["runs"][name];
        for compiled in [false, true] {
            let (w, mut scaler) = (weight(), scaler());
            let mut optimizer = Optimizer::new(&w, rule.clone()).unwrap();
            let f: Option<Compiled<Tensor, ()>> = compiled.then(|| {
                let spec = Spec::new(DType::F32, 4);
                compile(spec, |c| step(&w, &c, &mut scaler, &mut optimizer)).unwrap()
            });
            let mut before = w.get().to_vec::<f32>().unwrap();
            for at in 0..reference["steps"].as_u64().unwrap() as usize {
                let c = factors(at, &overflows);
                match &f {
                    Some(f) => f.run(&c).unwrap(),
                    None => step(&w, &c, &mut scaler, &mut optimizer).unwrap(),
                }
                let scale = run["scales"][at].as_f64().unwrap();
                assert_eq!(scaler.get_scale().unwrap(), scale, "step {at}");
                let now = w.get().to_vec::<f32>().unwrap();
                let skipped = overflows.contains(&(at as f64));
                assert_eq!(skipped, before == now, "step {at}");
                for (a, b) in now.iter().zip(floats(&run["values"][at])) {
                    assert!(
                        (f64::from(*a) - b).abs() <= 2e-6,
                        "step {at}: {a} is not {b}"
                    );
                }
                before = now;
            }
            let (found, wanted) = (scaler.state_dict().unwrap(), &run["state"]);
            assert_eq!(
                Some(found.growth_tracker),
                wanted["_growth_tracker"].as_i64()
            );
            assert_eq!(found.skipped, [0, overflows.len() as i64]);
            // The optimiser does not count skipped steps.
            let made = optimizer.state_dict().unwrap().state[&0]["step"]
                .item::<f32>()
                .unwrap();
            assert_eq!(made as usize, 24 - overflows.len());
        }
    }
    check("SGD", SGD::new().lr(0.01).momentum(0.9));
    check("AdamW", AdamW::new().lr(0.01));
}

/// A skipped step leaves every state of every rule unchanged, to the bit.
#[test]
fn a_skipped_step_writes_nothing() {
    fn check(rule: impl Rule + Clone) {
        for dtype in [DType::F32, DType::BF16] {
            let w = Var::parameter(random(3, &[4]).to_dtype(dtype)).unwrap();
            let mut optimizer = Optimizer::new(&w, rule.clone()).unwrap();
            if dtype == DType::BF16 {
                optimizer.keep_master_weights().unwrap();
            }
            let mut scaler = scaler();
            let c = |step| factors(step, &[2.0]).to_dtype(dtype);
            let bits = |optimizer: &Optimizer| -> Vec<Vec<u64>> {
                let cells = optimizer.named_state().into_iter().map(|s| s.var);
                let all = cells.chain(optimizer.master_params()).chain([w.clone()]);
                let bits = |v: Var| {
                    let values = v.get().to_dtype(DType::F64).to_vec::<f64>().unwrap();
                    values.into_iter().map(f64::to_bits).collect()
                };
                all.map(bits).collect()
            };
            for at in 0..2 {
                step(&w, &c(at), &mut scaler, &mut optimizer).unwrap();
            }
            let before = bits(&optimizer);
            step(&w, &c(2), &mut scaler, &mut optimizer).unwrap();
            assert_eq!(bits(&optimizer), before);
            assert_eq!(scaler.skipped().unwrap(), [1, 1]);
            step(&w, &c(3), &mut scaler, &mut optimizer).unwrap();
            assert_ne!(bits(&optimizer), before);
            assert_eq!(scaler.skipped().unwrap(), [0, 1]);
        }
    }
    check(AdamW::new().amsgrad(true));
    check(SGD::new().momentum(0.9).dampening(0.1));
    check(RMSprop::new().centered(true).momentum(0.1));
    check(Adafactor::new());
}

/// With powers of two for a scale, a step equals that of unscaled training, to the bit.
#[test]
fn scaled_training_is_plain_training() {
    let (plain, scaled) = (Net::new(1), Net::new(1));
    let mut a = Optimizer::new(&plain.all, AdamW::new()).unwrap();
    let mut b = Optimizer::new(&scaled.all, AdamW::new()).unwrap();
    let mut scaler = GradScaler::new();
    for seed in 0..4 {
        let x = random(seed, &[6, 7]);
        a.zero_grad();
        plain.loss(&x).backward().unwrap();
        a.step().unwrap();
        b.zero_grad();
        scaler.scale(scaled.loss(&x)).backward().unwrap();
        scaler.step(&mut b).unwrap();
        scaler.update().unwrap();
        assert_eq!(plain.values(), scaled.values());
    }
}

#[test]
fn clipping_sees_unscaled_gradients() {
    let (plain, scaled) = (weight(), weight());
    let mut a = Optimizer::new(&plain, SGD::new().lr(0.1)).unwrap();
    let mut b = Optimizer::new(&scaled, SGD::new().lr(0.1)).unwrap();
    let mut scaler = GradScaler::new();
    plain.get().square().sum(()).backward().unwrap();
    let norm = clip_grad_norm_(&plain, 0.5).unwrap().item::<f32>().unwrap();
    a.step().unwrap();
    scaler
        .scale(scaled.get().square().sum(()))
        .backward()
        .unwrap();
    scaler.unscale_(&b).unwrap();
    assert_eq!(
        clip_grad_norm_(&scaled, 0.5)
            .unwrap()
            .item::<f32>()
            .unwrap(),
        norm
    );
    scaler.step(&mut b).unwrap();
    assert_eq!(
        plain.get().to_vec::<f32>().unwrap(),
        scaled.get().to_vec::<f32>().unwrap()
    );
}

#[test]
fn gradients_accumulate_over_batches_and_losses() {
    let (plain, scaled) = (weight(), weight());
    let mut a = Optimizer::new(&plain, SGD::new().lr(0.1)).unwrap();
    let mut b = Optimizer::new(&scaled, SGD::new().lr(0.1)).unwrap();
    let mut scaler = GradScaler::new();
    let losses = |w: &Var| {
        [
            w.get().square().sum(()),
            (w.get() * 3.0).sum(()),
            w.get().exp().sum(()),
        ]
    };
    for loss in losses(&plain) {
        loss.backward().unwrap();
    }
    a.step().unwrap();
    for loss in losses(&scaled) {
        scaler.scale(loss).backward().unwrap();
    }
    scaler.step(&mut b).unwrap();
    scaler.update().unwrap();
    assert_eq!(
        plain.get().to_vec::<f32>().unwrap(),
        scaled.get().to_vec::<f32>().unwrap()
    );
}

/// An overflow for one optimiser skips its step alone, and the scale backs off once.
#[test]
fn optimisers_are_skipped_one_by_one() {
    let (u, v) = (weight(), weight());
    let mut a = Optimizer::new(&u, SGD::new().lr(0.1)).unwrap();
    let mut b = Optimizer::new(&v, SGD::new().lr(0.1)).unwrap();
    let mut scaler = scaler();
    let before = u.get().to_vec::<f32>().unwrap();
    scaler
        .scale((u.get() * f32::INFINITY).sum(()))
        .backward()
        .unwrap();
    scaler.scale(v.get().sum(())).backward().unwrap();
    assert_eq!(scaler.first_not_finite(&b).unwrap(), None);
    u.set_name("body.weight");
    assert_eq!(
        scaler.first_not_finite(&a).unwrap().as_deref(),
        Some("body.weight")
    );
    scaler.step(&mut a).unwrap();
    scaler.step(&mut b).unwrap();
    scaler.update().unwrap();
    assert_eq!(u.get().to_vec::<f32>().unwrap(), before);
    assert_ne!(v.get().to_vec::<f32>().unwrap(), before);
    assert_eq!(scaler.get_scale().unwrap(), 512.0);
}

/// The penalty of a gradient's norm, which is unscaled by hand and without reading the scale.
#[test]
fn gradient_penalties_are_unscaled() {
    let penalty = |scaler: Option<&GradScaler>| {
        let (w, x) = (
            parameter(1, &[3, 7]),
            random(2, &[5, 7]).requires_grad_(true),
        );
        let y = x.linear(&w).tanh().sum(());
        let outputs = scaler.map_or(y.clone(), |s| s.scale(&y));
        let (g,) = grad_with(&outputs, (&x,), Grad::new().create_graph(true)).unwrap();
        let g = match scaler {
            Some(s) => g / s.scale_tensor(),
            None => g,
        };
        let loss = y + g.square().sum(()).sqrt();
        let loss = scaler.map_or(loss.clone(), |s| s.scale(&loss));
        loss.backward().unwrap();
        w
    };
    let plain = penalty(None);
    let mut scaler = GradScaler::new();
    let scaled = penalty(Some(&scaler));
    let optimizer = Optimizer::new(&scaled, SGD::new()).unwrap();
    scaler.unscale_(&optimizer).unwrap();
    let grads = |w: &Var| w.grad().unwrap().to_vec::<f32>().unwrap();
    for (a, b) in grads(&plain).iter().zip(grads(&scaled)) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + a.abs()), "{a} {b}");
    }
}

/// Gradients too small for f16 survive with a scale.
#[test]
fn gradients_that_f16_can_not_hold_survive() {
    let run = |scale: f64| {
        let (w, x) = (
            Var::parameter(Tensor::full([4, 4], 0.1, DType::F32)).unwrap(),
            random(1, &[2, 4]),
        );
        let mut optimizer = Optimizer::new(&w, SGD::new().lr(1.0)).unwrap();
        let mut scaler = GradScaler::with(Scaling::new().init_scale(scale)).unwrap();
        let loss = autocast(DType::F16, || x.linear(&w))
            .to_dtype(DType::F32)
            .sum(())
            * 1e-8;
        scaler.scale(loss).backward().unwrap();
        scaler.step(&mut optimizer).unwrap();
        let grad = w.grad().unwrap().abs().amax(());
        grad.item::<f32>().unwrap()
    };
    assert_eq!(run(1.0), 0.0);
    assert!(run(65536.0) > 1e-9);
}

#[test]
fn the_wrong_order_of_calls_is_an_error_that_says_the_right_one() {
    let w = weight();
    let mut optimizer = Optimizer::new(&w, SGD::new()).unwrap();
    let mut scaler = scaler();
    let text = |r: Result<()>| r.unwrap_err().to_string();
    let e = text(scaler.update());
    assert!(e.contains("call step(&mut optimizer) before"), "{e}");
    let e = text(scaler.step(&mut optimizer));
    assert!(e.contains("call scale(loss).backward() before"), "{e}");
    scaler.scale(w.get().sum(())).backward().unwrap();
    scaler.unscale_(&optimizer).unwrap();
    let e = text(scaler.unscale_(&optimizer));
    assert!(e.contains("unscaled already"), "{e}");
    scaler.step(&mut optimizer).unwrap();
    let e = text(scaler.step(&mut optimizer));
    assert!(e.contains("call update() before the next one"), "{e}");
    let e = text(scaler.unscale_(&optimizer));
    assert!(e.contains("call update() first"), "{e}");
    scaler.update().unwrap();

    let half = Var::parameter(Tensor::ones([2], DType::F16)).unwrap();
    let low = Optimizer::new(&half, SGD::new()).unwrap();
    scaler.scale(half.get().sum(())).backward().unwrap();
    let e = text(scaler.unscale_(&low));
    assert!(e.contains("keep master weights"), "{e}");
    let mut search = Optimizer::new(&w, LBFGS::new()).unwrap();
    let e = text(scaler.step(&mut search));
    assert!(e.contains("evaluates the loss itself"), "{e}");
    for (options, word) in [
        (Scaling::new().growth_factor(1.0), "growth_factor"),
        (Scaling::new().backoff_factor(1.0), "backoff_factor"),
        (Scaling::new().init_scale(f64::NAN), "init_scale"),
        (Scaling::new().growth_interval(0i64), "growth_interval"),
        (Scaling::new().min_scale(2.0).max_scale(1.0), "min_scale"),
    ] {
        let e = GradScaler::with(options)
            .err()
            .expect("it is wrong")
            .to_string();
        assert!(e.contains(word), "{e}");
    }
    assert!(scaler.update_to(0.0).is_err());
    scaler.update_to(8.0).unwrap();
    assert_eq!(scaler.get_scale().unwrap(), 8.0);
}

#[test]
fn a_scaler_that_is_off_does_nothing() {
    let w = weight();
    let mut optimizer = Optimizer::new(&w, SGD::new().lr(1.0)).unwrap();
    let mut scaler = GradScaler::with(Scaling::new().enabled(false)).unwrap();
    scaler.scale((w.get() * 2.0).sum(())).backward().unwrap();
    scaler.unscale_(&optimizer).unwrap();
    scaler.step(&mut optimizer).unwrap();
    scaler.update().unwrap();
    assert_eq!(scaler.get_scale().unwrap(), 1.0);
    assert_eq!(
        w.get().to_vec::<f32>().unwrap(),
        [0.3f32, -0.7, 1.1, 0.2].map(|w| w - 2.0)
    );
}

#[test]
fn a_scaler_goes_on_from_its_state() {
    let run = |scaler: &mut GradScaler, w: &Var, optimizer: &mut Optimizer, from, to| {
        for at in from..to {
            step(w, &factors(at, &[1.0, 7.0]), scaler, optimizer).unwrap();
        }
    };
    let w = weight();
    let mut optimizer = Optimizer::new(&w, AdamW::new()).unwrap();
    let mut first = scaler();
    run(&mut first, &w, &mut optimizer, 0, 5);
    let state = first.state_dict().unwrap();
    let json = serde_json::to_string(&state).unwrap();
    assert!(json.contains("\"_growth_tracker\":"), "{json}");
    let (values, moments) = (w.detach(), optimizer.state_dict().unwrap());
    run(&mut first, &w, &mut optimizer, 5, 12);

    let again = weight();
    again.assign(values).unwrap();
    let mut optimizer = Optimizer::new(&again, AdamW::new()).unwrap();
    optimizer.load_state_dict(&moments).unwrap();
    let mut second = GradScaler::new();
    second
        .load_state_dict(&serde_json::from_str(&json).unwrap())
        .unwrap();
    run(&mut second, &again, &mut optimizer, 5, 12);
    assert_eq!(second.state_dict().unwrap(), first.state_dict().unwrap());
    assert_eq!(
        again.get().to_vec::<f32>().unwrap(),
        w.get().to_vec::<f32>().unwrap()
    );

    // PyTorch's state dicts have five entries.
    let torch = r#"{"scale": 4.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7, "_growth_tracker": 2}"#;
    second
        .load_state_dict(&serde_json::from_str(torch).unwrap())
        .unwrap();
    let found = second.state_dict().unwrap();
    assert_eq!(
        (found.scale, found.growth_factor, found.growth_tracker),
        (4.0, 3.0, 2)
    );
    assert_eq!(second.get_growth_interval(), 7);
}

/// The numbers of a compiled step change without a compilation.
#[test]
fn numbers_change_in_compiled_steps() {
    let (w, mut scaler) = (weight(), scaler());
    let mut optimizer = Optimizer::new(&w, SGD::new().lr(0.01)).unwrap();
    let f = compile(Spec::new(DType::F32, 4), |c| {
        step(&w, &c, &mut scaler, &mut optimizer)
    })
    .unwrap();
    scaler.set_growth_factor(4.0).unwrap();
    scaler.set_backoff_factor(0.125).unwrap();
    scaler.set_growth_interval(1).unwrap();
    f.run(factors(1, &[])).unwrap();
    assert_eq!(scaler.get_scale().unwrap(), 4096.0);
    f.run(factors(2, &[2.0])).unwrap();
    assert_eq!(scaler.get_scale().unwrap(), 512.0);
    assert!(scaler.set_growth_factor(0.5).is_err());
}

#[test]
fn scales_stay_in_their_bounds() {
    let w = weight();
    let mut optimizer = Optimizer::new(&w, SGD::new().lr(0.0)).unwrap();
    let options = Scaling::new()
        .init_scale(8.0)
        .growth_interval(1i64)
        .min_scale(4.0)
        .max_scale(16.0);
    let mut scaler = GradScaler::with(options).unwrap();
    let mut scales = Vec::new();
    for at in 0..6 {
        step(
            &w,
            &factors(at, &[3.0, 4.0, 5.0]),
            &mut scaler,
            &mut optimizer,
        )
        .unwrap();
        scales.push(scaler.get_scale().unwrap());
    }
    assert_eq!(scales, [16.0, 16.0, 16.0, 8.0, 4.0, 4.0]);
}

/// After many skipped steps in a row there is one warning, in lazy steps and in compiled ones; a profile has the
/// scales.
#[test]
fn many_skipped_steps_are_warned_of_and_scales_profiled() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let all = said.clone();
    set_warning_hook(Some(Arc::new(move |text| {
        if text.contains("GradScaler") {
            all.lock().unwrap().push(text.to_string());
        }
    })));
    for compiled in [false, true] {
        let (w, mut scaler) = (weight(), GradScaler::new());
        let mut optimizer = Optimizer::new(&w, SGD::new().lr(0.01)).unwrap();
        let f: Option<Compiled<Tensor, ()>> = compiled.then(|| {
            let spec = Spec::new(DType::F32, 4);
            compile(spec, |c| step(&w, &c, &mut scaler, &mut optimizer)).unwrap()
        });
        let mut run = |bad: bool| {
            let c = factors(0, if bad { &[0.0] } else { &[] });
            match &f {
                Some(f) => f.run(&c).unwrap(),
                None => step(&w, &c, &mut scaler, &mut optimizer).unwrap(),
            }
        };
        said.lock().unwrap().clear();
        (0..19).for_each(|_| run(true));
        assert_eq!(said.lock().unwrap().len(), 0);
        (0..3).for_each(|_| run(true));
        assert_eq!(said.lock().unwrap().len(), 1);
        run(false);
        assert!(said.lock().unwrap()[0].contains("20 steps in a row"));
        let ((), profile) = profiler::profile(|| {
            for bad in [true, false, false, true] {
                run(bad);
            }
        });
        let scales: Vec<f64> = profile.numbers().iter().map(|n| n.value).collect();
        let first = 65536.0 * 0.5f64.powi(23);
        assert_eq!(scales, [first, first, first, first / 2.0]);
        let table = profile.key_averages().table(3);
        let course = format!("GradScaler.scale: {first} (3 times), {}", first / 2.0);
        assert!(table.contains(&course), "{table}");
        let trace = profile.to_chrome_trace();
        assert_eq!(trace.matches("\"ph\": \"C\"").count(), 4, "{trace}");
        serde_json::from_str::<serde_json::Value>(&trace).unwrap();
    }
    set_warning_hook(None);
}

/// A checkpoint of PyTorch's holds the state that `scaler.json` has from there.
#[test]
fn states_are_those_of_pytorchs_checkpoints() {
    use kiln_formats::Value as Saved;
    use kiln_nn::amp::{AmpState, GradScalerState};
    let state = &reference()["runs"]["SGD"]["state"];
    let whole = |name: &str| state[name].as_i64().unwrap();
    let saved = Saved::dict([
        ("scale", Saved::from(state["scale"].as_f64().unwrap())),
        (
            "growth_factor",
            state["growth_factor"].as_f64().unwrap().into(),
        ),
        (
            "backoff_factor",
            state["backoff_factor"].as_f64().unwrap().into(),
        ),
        ("growth_interval", whole("growth_interval").into()),
        ("_growth_tracker", whole("_growth_tracker").into()),
    ]);
    let read = GradScalerState::try_from(&saved).unwrap();
    let mut scaler = scaler();
    scaler.load_state_dict(&read).unwrap();
    assert_eq!(scaler.state_dict().unwrap(), read);
    assert_eq!(format!("{:?}", Saved::from(&read)), format!("{saved:?}"));
    let e = GradScalerState::try_from(&Saved::dict([("scale", 1.0)])).unwrap_err();
    assert!(e.to_string().contains("growth_factor"), "{e}");
    let numbers = [("loss_scale", Saved::from(128.0)), ("unskipped", 3.into())];
    let apex = Saved::dict([("loss_scaler0", Saved::dict(numbers))]);
    let read = AmpState::try_from(&apex).unwrap();
    assert_eq!(
        (
            read.0["loss_scaler0"].loss_scale,
            read.0["loss_scaler0"].unskipped
        ),
        (128.0, 3)
    );
    assert_eq!(format!("{:?}", Saved::from(&read)), format!("{apex:?}"));
}
