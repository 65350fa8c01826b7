//! Parameters of narrower floats: moments in f32, and master weights.

use crate::{numbers, random};
use kiln_nn::optim::{Adam, AdamW, Optimizer, RMSprop, Rule, SGD, clip_grad_norm_};
use kiln_tensor::{DType, Tensor, Var};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn half(seed: u64, dtype: DType) -> Var {
    Var::parameter(random(seed, &[3, 7]).to_dtype(dtype)).unwrap()
}

fn f32s(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).to_vec().unwrap()
}

/// Makes a step with gradients from a seed, rounded to `dtype` for parameters of any dtype.
fn step(optimizer: &mut Optimizer, params: &[Var], seed: u64, dtype: DType) {
    for (i, p) in params.iter().enumerate() {
        let g = random(seed * 100 + i as u64, &p.shape().unwrap()).to_dtype(dtype);
        p.set_grad(g.to_dtype(p.dtype())).unwrap();
    }
    optimizer.step().unwrap();
}

#[test]
fn moments_of_halves_are_f32() {
    for dtype in HALVES {
        let p = half(1, dtype);
        let mut optimizer = Optimizer::new(&p, Adam::new()).unwrap();
        step(&mut optimizer, std::slice::from_ref(&p), 1, dtype);
        for s in optimizer.named_state() {
            if s.name.starts_with("exp_avg") {
                assert_eq!(s.var.dtype(), DType::F32, "{}", s.name);
            }
        }
        // In f16, (1 - β₂) g² would be 0 for gradients this small.
        p.set_grad(Tensor::full([3, 7], 1e-4, dtype)).unwrap();
        optimizer.step().unwrap();
        let dict = optimizer.state_dict().unwrap();
        let v = f32s(&dict.state[&0]["exp_avg_sq"]);
        assert!(v.iter().all(|v| *v > 0.0));
    }
}

#[test]
fn master_weights_go_the_way_of_an_f32_parameter() {
    fn check(rule: impl Rule + Clone) {
        for dtype in HALVES {
            let low = [half(1, dtype), half(2, dtype)];
            let wide: Vec<Var> = low
                .iter()
                .map(|p| Var::parameter(p.detach().to_dtype(DType::F32)).unwrap())
                .collect();
            let mut optimizer = Optimizer::new(&low, rule.clone()).unwrap();
            optimizer.keep_master_weights().unwrap();
            let mut reference = Optimizer::new(&wide, rule.clone()).unwrap();
            for seed in 0..5 {
                step(&mut optimizer, &low, seed, dtype);
                step(&mut reference, &wide, seed, dtype);
                let masters = optimizer.master_params();
                for ((p, master), w) in low.iter().zip(&masters).zip(&wide) {
                    assert_eq!(f32s(&master.get()), f32s(&w.get()));
                    assert_eq!(f32s(&p.get()), f32s(&w.get().to_dtype(dtype)));
                }
            }
        }
    }
    check(SGD::new().lr(1e-3).momentum(0.9).weight_decay(0.1));
    check(AdamW::new().lr(1e-4));
    check(RMSprop::new().lr(1e-4).centered(true));
}

#[test]
fn f32_parameters_beside_halves_have_no_master() {
    let params = [
        half(1, DType::BF16),
        Var::parameter(random(2, &[3, 7])).unwrap(),
    ];
    let mut optimizer = Optimizer::new(&params, SGD::new().lr(0.1)).unwrap();
    optimizer.keep_master_weights().unwrap();
    let masters = optimizer.master_params();
    assert_ne!(masters[0].id(), params[0].id());
    assert_eq!(masters[1].id(), params[1].id());
    let old = f32s(&params[1].get());
    // A master weight's f32 gradient is used beside that of an f32 parameter of the same shape.
    let g = random(9, &[3, 7]);
    masters[0].set_grad(&g).unwrap();
    params[1].set_grad(&g).unwrap();
    optimizer.step().unwrap();
    let new = f32s(&params[1].get());
    let stepped = old.iter().zip(f32s(&g)).map(|(p, g)| p - g * 0.1f32);
    assert_eq!(new, stepped.collect::<Vec<_>>());
    assert!(
        masters[0].grad().is_none(),
        "a step forgets the gradients of masters"
    );
    assert_eq!(params[0].dtype(), DType::BF16);
}

#[test]
fn masters_are_clipped_in_f32() {
    let p = Var::parameter(Tensor::zeros([4], DType::F16)).unwrap();
    let mut optimizer = Optimizer::new(&p, SGD::new().lr(1.0)).unwrap();
    optimizer.keep_master_weights().unwrap();
    let masters = optimizer.master_params();
    // The gradient's square overflows in f16, and 1e-9 of it is 0 there.
    let g = Tensor::from([3e-3f32, 0.0, 0.0, 4e-3]);
    masters[0].set_grad(&g * 1e-6).unwrap();
    let norm = clip_grad_norm_(&masters, 1e-9).unwrap();
    optimizer.step().unwrap();
    let found = norm.item::<f32>().unwrap();
    assert!((found - 5e-9).abs() < 1e-14, "{found}");
    let w = f32s(&masters[0].get());
    assert!(w[0] < 0.0 && w[3] < w[0], "{w:?}");
}

#[test]
fn training_with_masters_goes_on_from_a_loaded_state() {
    for dtype in HALVES {
        let params = [half(1, dtype), half(2, dtype)];
        let made = |params: &[Var]| {
            let mut optimizer = Optimizer::new(params, AdamW::new().lr(1e-4)).unwrap();
            optimizer.keep_master_weights().unwrap();
            optimizer
        };
        let mut optimizer = made(&params);
        (0..3).for_each(|seed| step(&mut optimizer, &params, seed, dtype));
        let saved = optimizer.state_dict().unwrap();
        let names: Vec<&str> = saved.state[&0].keys().map(String::as_str).collect();
        assert_eq!(names, ["exp_avg", "exp_avg_sq", "master_param", "step"]);
        let values: Vec<Tensor> = params.iter().map(Var::detach).collect();
        (3..6).for_each(|seed| step(&mut optimizer, &params, seed, dtype));

        let again = [half(8, dtype), half(9, dtype)];
        for (p, v) in again.iter().zip(&values) {
            p.assign(v).unwrap();
        }
        let mut optimizer = made(&again);
        optimizer.load_state_dict(&saved).unwrap();
        (3..6).for_each(|seed| step(&mut optimizer, &again, seed, dtype));
        for (a, b) in again.iter().zip(&params) {
            assert_eq!(f32s(&a.get()), f32s(&b.get()));
        }
    }
}

#[test]
fn states_with_and_without_masters_load_into_either() {
    let dtype = DType::BF16;
    let (low, wide) = (half(1, dtype), Var::parameter(random(1, &[3, 7])).unwrap());
    let mut with = Optimizer::new(&low, Adam::new()).unwrap();
    with.keep_master_weights().unwrap();
    let mut without = Optimizer::new(&wide, Adam::new()).unwrap();
    step(&mut with, std::slice::from_ref(&low), 1, dtype);
    step(&mut without, std::slice::from_ref(&wide), 2, DType::F32);

    let dict = with.state_dict().unwrap();
    without.load_state_dict(&dict).unwrap();
    let moments = without.state_dict().unwrap();
    assert_eq!(
        f32s(&moments.state[&0]["exp_avg"]),
        f32s(&dict.state[&0]["exp_avg"])
    );
    assert!(!moments.state[&0].contains_key("master_param"));

    // A master weight that was not saved begins with its parameter's value.
    let values: Vec<f32> = numbers(5, 21).into_iter().map(|x| x as f32).collect();
    low.assign(Tensor::from_slice(&values, [3, 7]).to_dtype(dtype))
        .unwrap();
    with.load_state_dict(&moments).unwrap();
    assert_eq!(f32s(&with.master_params()[0].get()), f32s(&low.get()));
}
