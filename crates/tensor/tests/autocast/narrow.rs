//! Narrow copies that are kept beside parameters.

use kiln_tensor::*;

fn pair() -> (Tensor, Var) {
    let x = Tensor::randn([5, 8], DType::F32);
    let w = Var::parameter(Tensor::randn([3, 8], DType::F32)).unwrap();
    x.realize().unwrap();
    (x, w)
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).to_vec().unwrap()
}

/// What autocast computes of a parameter, and what it is of one that is cast by hand.
fn agrees(x: &Tensor, w: &Var) {
    let found = autocast(DType::BF16, || x.linear(w));
    let wanted = x
        .to_dtype(DType::BF16)
        .linear(w.get().to_dtype(DType::BF16));
    assert_eq!(values(&found), values(&wanted));
}

#[test]
fn copies_follow_whatever_assigns_the_cell() {
    let (x, w) = pair();
    w.keep_narrow(DType::BF16).unwrap();
    agrees(&x, &w);
    w.assign(Tensor::randn([3, 8], DType::F32)).unwrap();
    agrees(&x, &w);
    w.mul_(3.0).unwrap();
    agrees(&x, &w);
    w.set(1, 0.5).unwrap();
    agrees(&x, &w);
    let f = compile(Spec::new(DType::F32, ()), |by| w.mul_(by)).unwrap();
    f.run(Tensor::from(0.3f32)).unwrap();
    agrees(&x, &w);
    // A run that fails takes both back.
    let row = Tensor::randn([1, 8], DType::F32).index_select(0, Tensor::from([7i64]));
    w.assign(w.get().detach() + row).unwrap();
    assert!(w.get().to_vec::<f32>().is_err());
    agrees(&x, &w);
    // Older snapshots are cast as they are, and f16 is no bf16.
    let old = w.get();
    w.mul_(2.0).unwrap();
    let found = autocast(DType::BF16, || x.linear(&old));
    assert_eq!(
        values(&found),
        values(&x.to_dtype(DType::BF16).linear(old.to_dtype(DType::BF16)))
    );
    let found = autocast(DType::F16, || x.linear(&w));
    assert_eq!(found.dtype(), DType::F16);
}

/// How many kernels other than the update cast a weight of `[3, 8]` to bf16.
fn weight_casts(explained: &str) -> usize {
    let (mut kernel, mut count) = ("", 0);
    for line in explained.lines() {
        match line.strip_prefix("  ") {
            Some(name) if !name.starts_with(' ') => kernel = name.split(' ').next().unwrap_or(""),
            Some(op) if !kernel.contains("sub") && op.starts_with("  cast bf16[3, 8]") => {
                count += 1
            }
            _ => {}
        }
    }
    count
}

/// A training with copies is one without, to the bit.
#[test]
fn training_with_copies_is_the_same() {
    let train = |copies: bool, compiled: bool| {
        let (x, w) = with_seed(5, pair);
        if copies {
            w.keep_narrow(DType::BF16).unwrap();
        }
        let step = |x: &Tensor| {
            w.zero_grad();
            let y = autocast(DType::BF16, || x.linear(&w).tanh());
            y.to_dtype(DType::F32).square().sum(()).backward()?;
            let new = no_grad(|| w.get() - w.grad().unwrap_or_else(|| w.get()) * 0.1);
            w.assign(new)
        };
        if compiled {
            let f = compile(Spec::new(DType::F32, (5, 8)), |x| step(&x)).unwrap();
            (0..4).for_each(|_| f.run(&x).unwrap());
            return (values(&w.get()), weight_casts(&f.explain().to_string()));
        }
        (0..4).for_each(|_| step(&x).unwrap());
        (values(&w.get()), 0)
    };
    let plain = train(false, false).0;
    assert_eq!(train(true, false).0, plain);
    let (without, with) = (train(false, true), train(true, true));
    assert_eq!((&without.0, &with.0), (&plain, &plain));
    // The copy is written by the kernel that updates the weight, and no other casts it.
    assert_eq!((without.1, with.1), (1, 0));
}

#[test]
fn gradients_go_to_the_cell_twice_too() {
    let (x, w) = pair();
    let grads = |w: &Var| {
        let x = x.detach().requires_grad_(true);
        let y = autocast(DType::BF16, || {
            x.linear(w).tanh().to_dtype(DType::F32).sum(())
        });
        let (g,) = grad_with(&y, (&x,), Grad::new().create_graph(true)).unwrap();
        w.zero_grad();
        g.square().sum(()).backward().unwrap();
        w.grad().unwrap().to_vec::<f32>().unwrap()
    };
    let wanted = grads(&w);
    w.keep_narrow(DType::BF16).unwrap();
    assert_eq!(grads(&w), wanted);
}

#[test]
fn what_can_not_be_kept_is_an_error() {
    let (x, w) = pair();
    let f = compile(Spec::new(DType::F32, ()), |by| w.mul_(by)).unwrap();
    w.set_name("fc.weight");
    w.keep_narrow(DType::BF16).unwrap();
    let e = f.run(Tensor::from(2.0f32)).unwrap_err().to_string();
    assert!(e.contains("`fc.weight` has a narrow copy now"), "{e}");
    assert!(w.keep_narrow(DType::F64).is_err());
    let e = compile(&x, |x| {
        w.keep_narrow(DType::F16)?;
        Ok::<_, Error>(x)
    });
    assert!(e.is_err());
    // A cast ends it.
    w.to_dtype_(DType::BF16).unwrap();
    w.to_dtype_(DType::F32).unwrap();
    f.run(Tensor::from(2.0f32)).unwrap();
    agrees(&x, &w);
}
