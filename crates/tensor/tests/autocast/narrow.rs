//! Narrow copies that are kept for parameters.

use kiln_tensor::*;

fn pair() -> (Tensor, Var) {
    let x = Tensor::randn([5, 8], DType::F32);
    let w = Var::parameter(Tensor::randn([3, 8], DType::F32)).unwrap();
    x.realize().unwrap();
    (x, w)
}

/// The stored values of a tensor. An operation fused into the same kernel would read them before they are rounded.
fn values(t: &Tensor) -> Vec<f32> {
    t.realize().unwrap();
    t.to_dtype(DType::F32).to_vec().unwrap()
}

/// Checks that autocast computes the same for a parameter as for an explicitly cast one.
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
    // Older snapshots are cast as they are, and f16 is not bf16.
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

/// Returns the number of kernels other than the update that cast a weight of `[3, 8]` to bf16.
fn weight_casts(explained: &str) -> usize {
    let (mut kernel, mut count) = ("", 0);
    for line in explained.lines() {
        match line.strip_prefix("  ") {
            Some(name) if !name.starts_with(' ') => kernel = name.split(' ').next().unwrap_or(""),
            Some(op) if !kernel.ends_with("sub") && op.starts_with("  cast bf16[3, 8]") => {
                count += 1
            }
            _ => {}
        }
    }
    count
}

/// Training with copies, made before or by the first cast, is the same as without. If each step is recorded anew, it
/// differs in which values are stored, and so rounded; if it is compiled, it is equal bit for bit.
#[test]
fn training_with_copies_is_the_same() {
    let train = |copies: &str, compiled: bool| {
        let (x, w) = with_seed(5, pair);
        match copies {
            "before" => w.keep_narrow(DType::BF16).unwrap(),
            "by the first cast" => w.keep_casts(),
            _ => {}
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
    let (plain, _) = train("none", false);
    let (compiled, casts) = train("none", true);
    assert_eq!(casts, 1);
    let close = |other: &[f32]| {
        let mut both = plain.iter().zip(other);
        let is_close = both.all(|(a, b)| (a - b).abs() < 5e-3);
        assert!(is_close, "{plain:?} {other:?}");
    };
    close(&compiled);
    for copies in ["before", "by the first cast"] {
        close(&train(copies, false).0);
        // The copy is written by the kernel that updates the weight, and no other casts it.
        assert_eq!(train(copies, true), (compiled.clone(), 0), "{copies}");
    }
}

/// A function that was compiled without the copy assigns only the cell; later reads of the copy, lazy or compiled,
/// see the new value.
#[test]
fn copies_that_come_later_are_renewed() {
    let (x, w) = pair();
    let assigns = compile(Spec::new(DType::F32, ()), |by| w.mul_(by)).unwrap();
    w.keep_casts();
    agrees(&x, &w);
    let reads = compile(&x, |x| autocast(DType::BF16, || x.linear(&w))).unwrap();
    for by in [2.0f32, 0.3, -1.7] {
        assigns.run(Tensor::from(by)).unwrap();
        let cast = w.get().to_dtype(DType::BF16);
        let wanted = values(&x.to_dtype(DType::BF16).linear(cast));
        assert_eq!(values(&reads.run(&x).unwrap()), wanted);
        agrees(&x, &w);
    }
}

/// A cell that the function has assigned is cast with its new value.
#[test]
fn a_cell_that_is_assigned_first_gets_no_copy_of_its_old_value() {
    let (x, w) = pair();
    w.keep_casts();
    let f = compile(&x, |x| {
        w.assign(w.get().detach() * 3.0)?;
        Ok::<_, Error>(autocast(DType::BF16, || x.linear(&w)))
    });
    let f = f.unwrap();
    for _ in 0..2 {
        let found = values(&f.run(&x).unwrap());
        let cast = w.get().to_dtype(DType::BF16);
        assert_eq!(found, values(&x.to_dtype(DType::BF16).linear(cast)));
    }
}

/// Parts of a cast parameter are read from its copy.
#[test]
fn parts_are_those_of_the_copy() {
    let (x, w) = pair();
    w.keep_casts();
    let f = compile(&x, |x| {
        autocast(DType::BF16, || {
            let whole = autocast_operand("linear", &w);
            [0, 1, 2].map(|i| x.linear(whole.narrow(0, i, 1)))
        })
    });
    let f = f.unwrap();
    let found = f.run(&x).unwrap().map(|t| values(&t)).concat();
    assert_eq!(weight_casts(&f.explain().to_string()), 0);
    let wanted = values(&autocast(DType::BF16, || x.linear(&w)).t().contiguous());
    assert_eq!(found, wanted);
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
    w.keep_narrow(DType::BF16).unwrap();
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
