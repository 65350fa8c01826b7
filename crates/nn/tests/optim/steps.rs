//! Steps as programs: the number of plans, updates in place, and recovery from failures.

use crate::{Net, parameter, random};
use kiln_nn::optim::{AdamW, LBFGS, Optimizer, SGD, clip_grad_norm_};
use kiln_nn::{BatchNorm1d, Conv2d, Linear, Module, sequential};
use kiln_tensor::{
    DType, Error, ErrorKind, Spec, Tensor, cache_stats, compile, explain, memory, realize_all,
    set_warning_hook,
};
use std::sync::{Arc, Mutex};

/// Runs a test in a process of its own, because counters and memory figures are per process.
fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os("KILN_ALONE").is_some() {
        return test();
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("steps::{name}"), "--nocapture"])
        .env("KILN_ALONE", "1")
        .status();
    assert!(
        status.unwrap().success(),
        "{name} failed in its own process"
    );
}

fn batch(i: u64) -> Tensor {
    random(100 + i, &[6, 7])
}

/// Makes a step with forward, backward, clipping and update.
fn step(net: &Net, optimizer: &mut Optimizer, x: &Tensor) -> Result<Tensor, Error> {
    optimizer.zero_grad();
    let loss = net.loss(x);
    loss.backward()?;
    clip_grad_norm_(&net.all, 0.5)?;
    optimizer.step()?;
    Ok(loss.detach())
}

#[test]
fn a_compiled_step_writes_parameters_and_moments_in_place() {
    in_place(true);
    in_place(false);
}

fn in_place(clip: bool) {
    let shapes: [&[usize]; 4] = [&[512, 64], &[512], &[64, 512], &[64]];
    let all = shapes.iter().zip(1..).map(|(s, i)| parameter(i, s));
    let net = Net { all: all.collect() };
    let sizes = shapes.map(|s| 4 * s.iter().product::<usize>());
    let mut optimizer = Optimizer::new(&net.all, AdamW::new()).unwrap();
    let spec = Spec::new(DType::F32, [2, 64]);
    let compiled = compile(spec, |x| match clip {
        true => step(&net, &mut optimizer, &x),
        false => {
            let loss = net.loss(&x);
            loss.backward()?;
            optimizer.step()?;
            Ok(loss.detach())
        }
    })
    .unwrap();
    let large = |o: &&kiln_plan::Output| {
        o.shape.len() == 2 || o.shape[..].iter().any(|d| d.as_const() >= Some(64))
    };
    let outputs: Vec<_> = compiled.plan().outputs.iter().filter(large).collect();
    assert_eq!(outputs.len(), 3 * shapes.len());
    for o in outputs {
        assert!(o.donor.is_some(), "{:?} is a second copy", o.shape);
    }
    // Of the buffers, only the gradients are as large as the parameters.
    let report = compiled.explain().memory.unwrap();
    let parameters: usize = sizes.iter().sum();
    assert!(report.outputs < 256, "{report:?}");
    assert!(report.peak < parameters + parameters / 4, "{report:?}");
    assert_eq!(report.prepared, 0);
    for _ in 0..2 {
        compiled.run(random(9, &[2, 64])).unwrap();
    }
}

#[test]
fn compiled_and_lazy_steps_agree_while_the_rate_changes() {
    let (lazy, fast) = (Net::new(3), Net::new(3));
    let new = |net: &Net| Optimizer::new(&net.all, AdamW::new()).unwrap();
    let (mut a, mut b) = (new(&lazy), new(&fast));
    let spec = Spec::like(batch(0)).unwrap();
    let compiled = compile(spec, |x| step(&fast, &mut b, &x)).unwrap();
    for i in 0..6 {
        let lr = 0.01 / (i + 1) as f64;
        a.set_lr(lr).unwrap();
        b.set_lr(lr).unwrap();
        let x = step(&lazy, &mut a, &batch(i)).unwrap();
        let y = &compiled.run(batch(i)).unwrap();
        let close = (x.item::<f32>().unwrap() - y.item::<f32>().unwrap()).abs() < 1e-6;
        assert!(close, "step {i}");
    }
    let both = lazy.values().into_iter().zip(fast.values());
    for (x, y) in both {
        assert!((x - y).abs() < 1e-5, "{x} is not {y}");
    }
    let e = compile((), |()| b.set_lr(1.0)).err().unwrap();
    assert!(e.message().contains("between runs"), "{e}");
}

#[test]
fn every_step_is_one_plan_that_is_compiled_once() {
    alone("every_step_is_one_plan_that_is_compiled_once", || {
        let net = Net::new(1);
        let mut optimizer = Optimizer::new(&net.all, AdamW::new()).unwrap();
        let plans = || cache_stats().compiled + cache_stats().hits;
        for i in 0..5 {
            let before = plans();
            optimizer.set_lr(0.01 / (i + 1) as f64).unwrap();
            let loss = step(&net, &mut optimizer, &batch(i)).unwrap();
            assert!(loss.item::<f32>().unwrap().is_finite());
            assert_eq!(plans() - before, 1, "runs of step {i}");
            assert_eq!(cache_stats().compiled, 1);
        }
        // Reading the loss first splits the step in two.
        for i in 0..3 {
            let before = plans();
            optimizer.zero_grad();
            let loss = net.loss(&batch(i));
            loss.item::<f32>().unwrap();
            loss.backward().unwrap();
            optimizer.step().unwrap();
            loss.item::<f32>().unwrap();
            assert_eq!(plans() - before, 2, "runs of step {i}");
            assert_eq!(cache_stats().compiled, 3);
        }
    });
}

#[test]
fn backward_after_a_read_does_not_run_forward_again() {
    let net = Net::new(1);
    let products = |read: bool| {
        net.all.iter().for_each(|p| p.zero_grad());
        let loss = net.loss(&batch(0));
        if read {
            loss.item::<f32>().unwrap();
        }
        loss.backward().unwrap();
        let gradients: Vec<Tensor> = net.all.iter().filter_map(|p| p.grad()).collect();
        let text = explain(&gradients).unwrap().to_string();
        let is_product = |l: &&str| l.trim_start().starts_with("matmul f32[");
        text.lines().filter(is_product).count()
    };
    // Two forward, three backward.
    assert_eq!(products(false), 5);
    assert_eq!(products(true), 3);
}

#[test]
fn a_logged_running_loss_keeps_memory_flat() {
    alone("a_logged_running_loss_keeps_memory_flat", || {
        let net = Net::new(1);
        let rule = SGD::new().momentum(0.9);
        let mut optimizer = Optimizer::new(&net.all, rule).unwrap();
        let mut total = Tensor::scalar(0f32);
        let batches: Vec<Tensor> = (0..4).map(batch).collect();
        let mut after_warm_up = None;
        for i in 0..3000 {
            optimizer.zero_grad();
            let loss = net.loss(&batches[i % 4]);
            total += &loss;
            loss.backward().unwrap();
            optimizer.step().unwrap();
            if i == 300 {
                after_warm_up = Some((memory::stats().allocated, resident()));
            }
        }
        let (allocated, pages) = after_warm_up.unwrap();
        let now = memory::stats().allocated;
        assert!(now <= allocated + 1024, "{allocated} bytes, then {now}");
        assert!(
            resident() < pages + 512,
            "{pages} pages, then {}",
            resident()
        );
        assert!(total.item::<f32>().unwrap() > 0.0);
        let e = total.backward().unwrap_err();
        assert!(e.message().contains("released"), "{e}");
        assert!(cache_stats().compiled <= 3, "{:?}", cache_stats());
    });
}

/// Returns the resident pages of this process; 0 if the system does not report them.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let field = text.split_whitespace().nth(1);
    field.and_then(|f| f.parse().ok()).unwrap_or(0)
}

#[test]
fn micro_batches_accumulate_to_the_gradient_of_the_whole() {
    let net = Net::new(5);
    let whole = random(8, &[12, 7]);
    net.loss(&whole).backward().unwrap();
    let gradients = || -> Vec<f32> {
        let read = |p: &kiln_tensor::Var| p.grad().unwrap().to_vec::<f32>().unwrap();
        net.all.iter().flat_map(read).collect()
    };
    let expected = gradients();
    net.all.iter().for_each(|p| p.zero_grad());
    for part in whole.chunk(4, 0) {
        (net.loss(&part) / 4.0).backward().unwrap();
    }
    for (a, b) in gradients().iter().zip(&expected) {
        assert!((a - b).abs() < 1e-6, "{a} is not {b}");
    }
}

/// Trains two networks in turn. The first makes the second's input: one shared tensor, or one made twice.
fn adversaries(shared: bool) -> Vec<f32> {
    let (generator, judge) = (Net::new(20), {
        let shapes: [&[usize]; 4] = [&[13, 5], &[13], &[2, 13], &[2]];
        let all = shapes.iter().zip(40..).map(|(s, i)| parameter(i, s));
        Net { all: all.collect() }
    });
    let mut make = Optimizer::new(&generator.all, AdamW::new()).unwrap();
    let mut tell = Optimizer::new(&judge.all, SGD::new().lr(0.1)).unwrap();
    for i in 0..4 {
        let made = generator.forward(&batch(i));
        tell.zero_grad();
        judge.loss(&made.detach()).backward().unwrap();
        tell.step().unwrap();
        let made = match shared {
            true => made,
            false => generator.forward(&batch(i)),
        };
        make.zero_grad();
        (judge.loss(&made) + judge.loss(&random(7, &[3, 5])))
            .backward()
            .unwrap();
        make.step().unwrap();
    }
    [generator.values(), judge.values()].concat()
}

#[test]
fn two_networks_may_share_a_tensor_across_their_steps() {
    let (shared, apart) = (adversaries(true), adversaries(false));
    for (a, b) in shared.iter().zip(&apart) {
        assert!((a - b).abs() < 1e-5, "{a} is not {b}");
    }
}

#[test]
fn a_step_that_fails_changes_nothing_and_the_next_one_works() {
    let net = Net::new(2);
    let rule = SGD::new().momentum(0.9);
    let mut optimizer = Optimizer::new(&net.all, rule).unwrap();
    let mut train = |label: i64| {
        optimizer.zero_grad();
        let labels = Tensor::from_slice(&[label; 6], [6]);
        let scores = net.forward(&batch(0));
        let loss = scores.cross_entropy(&labels);
        loss.backward()?;
        optimizer.step()
    };
    train(1).unwrap();
    let before = net.values();
    let e = train(5).unwrap_err();
    assert!(e.message().contains('5'), "{e}");
    assert_eq!(net.values(), before);
    train(2).unwrap();
    assert_ne!(net.values(), before);
    assert!(net.values().iter().all(|x| x.is_finite()));
}

#[test]
fn a_step_that_fails_rolls_counts_and_unrelated_parameters_back() {
    // SGD's step count depends on no gradient, and b's count does not depend on a's.
    let (a, b) = (parameter(1, &[3]), parameter(2, &[3]));
    let mut optimizer = Optimizer::new([&a, &b], SGD::new()).unwrap();
    let mut train = |index: i64| {
        optimizer.zero_grad();
        a.get().square().sum(()).backward().unwrap();
        let at = Tensor::from_slice(&[index], [1]);
        b.get().gather(0, &at).sum(()).backward().unwrap();
        let failed = optimizer.step().is_err();
        let state = optimizer.state_dict().unwrap().state;
        let steps: Vec<f32> = state.values().map(|s| s["step"].item().unwrap()).collect();
        let held = [&a, &b].map(|v| v.get().to_vec::<f32>().unwrap());
        (failed, steps, held)
    };
    let (failed, steps, held) = train(1);
    assert_eq!((failed, &steps[..]), (false, &[1.0, 1.0][..]));
    assert_eq!(train(7), (true, steps, held));
}

/// Looks up a row out of range, which is found only when it runs.
fn no_row() -> Tensor {
    let rows = Tensor::from([[1.0f32, 2.0]]);
    rows.index_select(0, Tensor::from([7i64]))
}

#[test]
fn a_step_reports_no_error_of_another_tensor() {
    let (unread, read) = (no_row(), no_row());
    assert!(read.realize().is_err());
    for rule in [true, false] {
        let w = parameter(1, &[3]);
        let mut optimizer = match rule {
            true => Optimizer::new(&w, SGD::new().lr(0.5)).unwrap(),
            false => Optimizer::new(&w, LBFGS::new()).unwrap(),
        };
        for _ in 0..3 {
            let loss = || {
                let loss = w.square().sum(());
                loss.backward().map(|()| loss)
            };
            assert!(optimizer.step_with(loss).unwrap().is_realized());
        }
        let left = w.to_vec::<f32>().unwrap();
        assert!(left.iter().all(|x| x.abs() < 1e-3), "{left:?}");
    }
    let told = realize_all().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Data);
    realize_all().expect("both errors were told");
    assert!(unread.realize().is_err() && read.realize().is_err());
}

#[test]
fn warnings_of_a_search_show_the_line_of_the_step() {
    alone("warnings_of_a_search_show_the_line_of_the_step", || {
        let texts: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = texts.clone();
        let hook = move |text: &str| seen.lock().unwrap().push(text.to_string());
        set_warning_hook(Some(Arc::new(hook)));
        for n in 1..40 {
            // The second parameter's offset is a constant in the plan.
            let (a, b) = (parameter(1, &[n]), parameter(2, &[3]));
            let mut optimizer = Optimizer::new([&a, &b], LBFGS::new().max_iter(2)).unwrap();
            let loss = || {
                let loss = a.square().sum(()) + b.square().sum(());
                loss.backward().map(|()| loss)
            };
            optimizer.step_with(loss).unwrap();
        }
        let texts = texts.lock().unwrap();
        assert!(!texts.is_empty());
        for text in texts.iter() {
            assert!(text.contains(file!()) && !text.contains("/src/"), "{text}");
        }
    });
}

#[test]
fn a_copy_computes_all_cells_in_one_program() {
    alone("a_copy_computes_all_cells_in_one_program", || {
        let model = sequential![Linear::new(3, 4), Conv2d::new(2, 5, 3), BatchNorm1d::new(7)];
        let model = model.unwrap();
        let copy = model.deep_copy().unwrap();
        assert_eq!(cache_stats().compiled, 1);
        let narrow = model.deep_copy_as(DType::BF16).unwrap();
        assert_eq!(cache_stats().compiled, 2);
        for (cell, other) in model.parameters().iter().zip(copy.parameters()) {
            assert!(other.get().is_realized());
            let same = cell.get().eq(other.get()).all(());
            assert!(same.item::<bool>().unwrap());
        }
        assert!(narrow.parameters().iter().all(|p| p.dtype() == DType::BF16));
    });
}
