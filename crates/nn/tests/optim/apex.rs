//! Apex's levels and names: their effect on a model, several losses, and errors of calls out of order.

use crate::random;
use kiln_nn::amp::{self, Amp, FusedAdam, FusedSGD, Initialize, LossScale, OptLevel, ScaleLoss};
use kiln_nn::optim::{Optimizer, clip_grad_norm_};
use kiln_nn::{BatchNorm1d, Forward, Linear, Module, Sequential, sequential};
use kiln_tensor::{
    DType, Result, Spec, Tensor, compile, current_autocast, is_autocast_enabled, with_seed,
};

fn model(seed: u64) -> Sequential {
    let model = with_seed(
        seed,
        || sequential!["fc": Linear::new(7, 9), "norm": BatchNorm1d::new(9), "head": Linear::new(9, 3)],
    );
    model.unwrap()
}

fn optimizer(model: &dyn Module) -> Optimizer {
    Optimizer::new(model.parameters(), FusedSGD::new(0.1).momentum(0.9)).unwrap()
}

fn values(model: &dyn Module) -> Vec<Vec<f64>> {
    let all = model.parameters().into_iter().chain(model.buffers());
    all.map(|p| p.get().to_dtype(DType::F64).to_vec().unwrap())
        .collect()
}

fn labels() -> Tensor {
    Tensor::from([0i64, 1, 2, 1, 0])
}

/// Makes a step as Apex's users write it, with a factor of the loss.
fn step(amp: &mut Amp, m: &Sequential, o: &mut Optimizer, x: &Tensor, factor: f32) -> Result<()> {
    o.zero_grad();
    let loss = amp.forward(x, |x| m.call(x)).cross_entropy(labels()) * factor;
    amp.scale_loss(&loss, &mut [&mut *o], |scaled| scaled.backward())?;
    o.step()
}

#[test]
fn levels_have_the_effect_of_their_properties() {
    for half in [DType::F16, DType::BF16] {
        for level in OptLevel::ALL {
            let (m, p) = (model(1), level.properties(half));
            let mut o = optimizer(&m);
            let options = Initialize::new(level).half(half);
            let amp = amp::initialize(&m, &mut [&mut o], options).unwrap();
            assert_eq!(*amp.properties(), p);
            let weight = p.cast_model_type.unwrap_or(DType::F32);
            let norm = match p.keep_batchnorm_fp32 {
                Some(true) => DType::F32,
                _ => weight,
            };
            assert_eq!(
                m.get_parameter("fc.weight").unwrap().dtype(),
                weight,
                "{level:?}"
            );
            assert_eq!(
                m.get_parameter("norm.weight").unwrap().dtype(),
                norm,
                "{level:?}"
            );
            assert_eq!(o.keeps_master_weights(), p.master_weights == Some(true));
            let y = amp.forward(random(1, &[5, 7]), |x| {
                assert_eq!(is_autocast_enabled(), p.patch_torch_functions, "{level:?}");
                assert_eq!(x.dtype(), weight);
                let y = m.call(x);
                let inside = current_autocast().map_or(weight, |casts| casts.dtype);
                assert_eq!(y.dtype(), inside, "{level:?}");
                y
            });
            let wanted = if level == OptLevel::O1 {
                half
            } else {
                DType::F32
            };
            assert_eq!(y.check().unwrap().dtype(), wanted, "{level:?}");
        }
    }
}

#[test]
fn o0_is_plain_training_to_the_bit() {
    let (plain, scaled) = (model(3), model(3));
    let (mut a, mut b) = (optimizer(&plain), optimizer(&scaled));
    let mut amp = amp::initialize(&scaled, &mut [&mut b], OptLevel::O0).unwrap();
    for seed in 0..4 {
        let x = random(seed, &[5, 7]);
        a.zero_grad();
        plain.call(&x).cross_entropy(labels()).backward().unwrap();
        a.step().unwrap();
        step(&mut amp, &scaled, &mut b, &x, 1.0).unwrap();
        assert_eq!(values(&plain), values(&scaled));
    }
    // Disabled, no level has an effect.
    let off = model(3);
    let mut c = optimizer(&off);
    let options = Initialize::new(OptLevel::O3).enabled(false);
    let mut amp = amp::initialize(&off, &mut [&mut c], options).unwrap();
    (0..4).for_each(|seed| step(&mut amp, &off, &mut c, &random(seed, &[5, 7]), 1.0).unwrap());
    assert_eq!(values(&plain), values(&off));
}

/// An overflow is skipped, and the scale halved, in lazy steps and in a compiled one.
#[test]
fn overflows_are_skipped_at_o1_and_o2() {
    for level in [OptLevel::O1, OptLevel::O2] {
        for compiled in [false, true] {
            let m = model(5);
            let mut o = optimizer(&m);
            let options = Initialize::new(level).half(DType::BF16);
            let mut amp = amp::initialize(&m, &mut [&mut o], options).unwrap();
            let spec = (Spec::new(DType::F32, (5, 7)), Spec::new(DType::F32, ()));
            let f = compiled.then(|| {
                compile(spec, |(x, factor)| {
                    o.zero_grad();
                    let loss = amp.forward(&x, |x| m.call(x)).cross_entropy(labels()) * factor;
                    amp.scale_loss(&loss, &mut [&mut o], |scaled| scaled.backward())?;
                    o.step()
                })
                .unwrap()
            });
            let mut scales = Vec::new();
            for (i, factor) in [1.0f32, f32::INFINITY, 1.0, f32::NAN, 1.0]
                .into_iter()
                .enumerate()
            {
                let parameters = |m: &Sequential| values(m)[..6].to_vec();
                let before = parameters(&m);
                let x = random(i as u64, &[5, 7]);
                match &f {
                    Some(f) => f.run((&x, Tensor::from(factor))).unwrap(),
                    None => step(&mut amp, &m, &mut o, &x, factor).unwrap(),
                }
                assert_eq!(
                    parameters(&m) == before,
                    !factor.is_finite(),
                    "{level:?}, step {i}"
                );
                scales.push(amp.loss_scale(0).unwrap());
            }
            assert_eq!(
                scales,
                [65536.0, 32768.0, 32768.0, 16384.0, 16384.0],
                "{level:?}"
            );
        }
    }
}

/// The losses of training at every level stay close to those in f32.
#[test]
fn losses_fall_at_every_level() {
    for half in [DType::F16, DType::BF16] {
        let losses: Vec<f32> = OptLevel::ALL
            .into_iter()
            .map(|level| {
                let m = model(8);
                let mut o = optimizer(&m);
                let options = Initialize::new(level).half(half);
                let mut amp = amp::initialize(&m, &mut [&mut o], options).unwrap();
                let x = random(2, &[5, 7]);
                (0..15).for_each(|_| step(&mut amp, &m, &mut o, &x, 1.0).unwrap());
                let loss = amp
                    .forward(&x, |x| m.call(x))
                    .to_dtype(DType::F32)
                    .cross_entropy(labels());
                loss.item::<f32>().unwrap()
            })
            .collect();
        assert!(losses[0] < 0.2, "{losses:?}");
        assert!(
            losses[1..].iter().all(|l| (l - losses[0]).abs() < 0.1),
            "{losses:?}"
        );
    }
}

/// Two losses with scales of their own add up to one step, and master weights are clipped.
#[test]
fn several_losses_have_scales_of_their_own() {
    let (plain, scaled) = (model(4), model(4));
    let (mut a, mut b) = (optimizer(&plain), optimizer(&scaled));
    let options = Initialize::new(OptLevel::O1)
        .num_losses(2i64)
        .half(DType::BF16);
    let mut amp = amp::initialize(&scaled, &mut [&mut b], options).unwrap();
    let x = random(1, &[5, 7]);
    let parts = |y: &Tensor| [y.cross_entropy(labels()), y.square().mean(())];
    // There are no casts, so that both compute the same numbers.
    for part in parts(&plain.call(&x)) {
        part.backward_with(kiln_tensor::Backward::new().retain_graph(true))
            .unwrap();
    }
    clip_grad_norm_(plain.parameters(), 0.3).unwrap();
    a.step().unwrap();
    for (id, part) in parts(&scaled.call(&x)).iter().enumerate() {
        let options = ScaleLoss::new().loss_id(id as i64);
        let backward =
            |scaled: Tensor| scaled.backward_with(kiln_tensor::Backward::new().retain_graph(true));
        amp.scale_loss_with(part, &mut [&mut b], options, backward)
            .unwrap();
    }
    clip_grad_norm_(amp::master_params(&b), 0.3).unwrap();
    b.step().unwrap();
    for (a, b) in values(&plain)
        .iter()
        .flatten()
        .zip(values(&scaled).iter().flatten())
    {
        assert!((a - b).abs() <= 1e-6 * (1.0 + a.abs()), "{a} {b}");
    }
    // An overflow of one loss changes only its scale, and skips the step of both.
    let before = values(&scaled)[..6].to_vec();
    b.zero_grad();
    for id in [0i64, 1] {
        let factor = [f32::INFINITY, 1.0][id as usize];
        let loss = scaled.call(&x).square().mean(()) * factor;
        let options = ScaleLoss::new().loss_id(id);
        amp.scale_loss_with(&loss, &mut [&mut b], options, |scaled| scaled.backward())
            .unwrap();
    }
    b.step().unwrap();
    assert_eq!(values(&scaled)[..6], before[..]);
    assert_eq!(amp.loss_scale(0).unwrap(), 32768.0);
    assert_eq!(amp.loss_scale(1).unwrap(), 65536.0);
}

#[test]
fn gradients_of_parts_stay_scaled_until_the_last() {
    for level in [OptLevel::O1, OptLevel::O2] {
        let run = |delayed: bool| {
            let m = model(6);
            m.eval();
            let mut o = optimizer(&m);
            let options = Initialize::new(level).half(DType::BF16);
            let mut amp = amp::initialize(&m, &mut [&mut o], options).unwrap();
            for seed in 0..2 {
                let x = random(seed, &[5, 7]);
                let loss = amp.forward(&x, |x| m.call(x)).cross_entropy(labels());
                let options = ScaleLoss::new().delay_unscale(delayed && seed == 0);
                amp.scale_loss_with(&loss, &mut [&mut o], options, |scaled| scaled.backward())
                    .unwrap();
                if delayed && seed == 0 {
                    let e = o.step().unwrap_err().to_string();
                    assert!(
                        e.contains("call scale_loss without delay_unscale before step()"),
                        "{e}"
                    );
                }
            }
            o.step().unwrap();
            values(&m)
        };
        let (once, delayed) = (run(false), run(true));
        for (a, b) in once.iter().flatten().zip(delayed.iter().flatten()) {
            assert!(
                (a - b).abs() <= 2e-2 * (1.0 + a.abs()),
                "{level:?}: {a} {b}"
            );
        }
    }
}

#[test]
fn calls_out_of_order_are_errors_that_say_the_order() {
    let m = model(1);
    let (mut o, mut other) = (optimizer(&m), optimizer(&m));
    let mut amp = amp::initialize(&m, &mut [&mut o], OptLevel::O1).unwrap();
    let loss = m.call(random(1, &[5, 7])).sum(());
    let e = amp
        .scale_loss(&loss, &mut [&mut other], |s| s.backward())
        .unwrap_err()
        .to_string();
    assert!(e.contains("was not given to amp::initialize"), "{e}");
    let options = ScaleLoss::new().loss_id(1i64);
    let e = amp.scale_loss_with(&loss, &mut [&mut o], options, |s| s.backward());
    assert!(e.unwrap_err().to_string().contains("num_losses 1"));
    let again = amp::initialize(&m, &mut [&mut o], OptLevel::O1)
        .err()
        .map(|e| e.to_string());
    assert!(again.is_some_and(|e| e.contains("call it once, with all optimisers")));
    let cast = model(1);
    cast.half().unwrap();
    let mut o = optimizer(&cast);
    let e = amp::initialize(&cast, &mut [&mut o], OptLevel::O2)
        .err()
        .map(|e| e.to_string());
    assert!(e.is_some_and(|e| e.contains("give it a model of f32")));
}

#[test]
fn keywords_change_a_level_and_contradictions_are_errors() {
    let chosen = |options: Initialize| {
        let m = model(1);
        let mut o = optimizer(&m);
        amp::initialize(&m, &mut [&mut o], options).map(|amp| (*amp.properties(), m))
    };
    let options = Initialize::new(OptLevel::O2)
        .cast_model_type(DType::BF16)
        .keep_batchnorm_fp32(false)
        .master_weights(false)
        .loss_scale(LossScale::Fixed(128.0));
    let (p, m) = chosen(options).unwrap();
    assert_eq!(p.loss_scale, LossScale::Fixed(128.0));
    assert_eq!(m.get_parameter("norm.weight").unwrap().dtype(), DType::BF16);
    let text = p.to_string();
    assert!(
        text.contains("opt_level: O2") && text.contains("loss_scale: 128"),
        "{text}"
    );
    for (options, word) in [
        (
            Initialize::new(OptLevel::O1).keep_batchnorm_fp32(true),
            "keep_batchnorm_fp32",
        ),
        (
            Initialize::new(OptLevel::O1).master_weights(true),
            "master_weights",
        ),
        (
            Initialize::new(OptLevel::O1).cast_model_type(DType::F16),
            "cast_model_type",
        ),
        (
            Initialize::new(OptLevel::O2).loss_scale(LossScale::Fixed(0.0)),
            "loss_scale",
        ),
        (Initialize::new(OptLevel::O2).num_losses(0i64), "num_losses"),
        (Initialize::new(OptLevel::O2).half(DType::F64), "half"),
        (
            Initialize::new(OptLevel::O2).max_loss_scale(-1.0),
            "min_scale",
        ),
    ] {
        let e = chosen(options).err().expect("it is wrong").to_string();
        assert!(e.contains(word), "{e}");
    }
    // Outputs are cast to the given dtype.
    let m = model(1);
    let mut o = optimizer(&m);
    let options = Initialize::new(OptLevel::O3).cast_model_outputs(DType::F64);
    let amp = amp::initialize(&m, &mut [&mut o], options).unwrap();
    assert_eq!(
        amp.forward(random(1, &[5, 7]), |x| m.call(x)).dtype(),
        DType::F64
    );
}

#[test]
fn training_resumes_from_its_state() {
    let build = || {
        let m = model(7);
        let mut o = Optimizer::new(m.parameters(), FusedAdam::new()).unwrap();
        let amp = amp::initialize(&m, &mut [&mut o], OptLevel::O2).unwrap();
        (m, o, amp)
    };
    let run = |(m, o, amp): &mut (Sequential, Optimizer, Amp), from: u64, to: u64| {
        for seed in from..to {
            let factor = if seed == 2 { f32::INFINITY } else { 1.0 };
            step(amp, m, o, &random(seed, &[5, 7]), factor).unwrap();
        }
    };
    let mut first = build();
    run(&mut first, 0, 4);
    let json = serde_json::to_string(&first.2.state_dict().unwrap()).unwrap();
    assert_eq!(
        json,
        r#"{"loss_scaler0":{"loss_scale":32768.0,"unskipped":1}}"#
    );
    let (weights, moments) = (first.0.state_dict(), first.1.state_dict().unwrap());
    run(&mut first, 4, 7);
    let mut second = build();
    second.0.load_state_dict(&weights, true).unwrap();
    second.1.load_state_dict(&moments).unwrap();
    second
        .2
        .load_state_dict(&serde_json::from_str(&json).unwrap())
        .unwrap();
    run(&mut second, 4, 7);
    assert_eq!(values(&first.0), values(&second.0));
    assert_eq!(
        first.2.state_dict().unwrap(),
        second.2.state_dict().unwrap()
    );
    let none = serde_json::from_str("{}").unwrap();
    assert!(second.2.load_state_dict(&none).is_err());
}
