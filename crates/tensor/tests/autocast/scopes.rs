//! The scopes in which casts apply.

use kiln_tensor::*;

fn pair() -> (Tensor, Var) {
    let x = Tensor::randn([5, 8], DType::F32);
    let w = Var::parameter(Tensor::randn([3, 8], DType::F32)).unwrap();
    x.realize().unwrap();
    (x, w)
}

#[test]
fn scopes_nest_and_end() {
    let (x, w) = pair();
    let dtype = || x.linear(&w).dtype();
    assert_eq!(dtype(), DType::F32);
    let inside = autocast(DType::BF16, || {
        assert!(is_autocast_enabled());
        let outer = dtype();
        let inner = autocast(DType::F16, dtype);
        let off = no_autocast(|| (dtype(), autocast(DType::F16, dtype), is_autocast_enabled()));
        (outer, inner, off, dtype())
    });
    let off = (DType::F32, DType::F16, false);
    assert_eq!(inside, (DType::BF16, DType::F16, off, DType::BF16));
    assert!(!is_autocast_enabled());
    // A panic also ends the scope.
    let caught = std::panic::catch_unwind(|| autocast(DType::BF16, || panic!("on purpose")));
    assert!(caught.is_err() && !is_autocast_enabled());
    // The scope applies to this thread only.
    autocast(DType::BF16, || {
        let other = std::thread::spawn(is_autocast_enabled).join().unwrap();
        assert!(!other);
    });
}

#[test]
fn gradients_arrive_in_the_dtype_of_the_parameter() {
    let (x, w) = pair();
    let loss = autocast(DType::BF16, || {
        x.linear(&w).cross_entropy(Tensor::from([0i64, 1, 2, 0, 1]))
    });
    assert_eq!(loss.dtype(), DType::F32);
    loss.backward().unwrap();
    let found = w.grad().unwrap();
    assert_eq!(found.dtype(), DType::F32);
    // Close to the gradient in f32, but not equal.
    w.zero_grad();
    x.linear(&w)
        .cross_entropy(Tensor::from([0i64, 1, 2, 0, 1]))
        .backward()
        .unwrap();
    let exact = w.grad().unwrap();
    let off = (&found - &exact).abs().amax(()).item::<f32>().unwrap();
    assert!(off > 0.0 && off < 0.05, "{off}");
}

#[test]
fn casts_are_part_of_compiled_functions() {
    let (x, w) = pair();
    let f = compile(Spec::new(DType::F32, ("n", 8)), |x| {
        autocast(DType::BF16, || x.linear(&w))
    })
    .unwrap();
    let found = f.run(&x).unwrap();
    let wanted = x
        .to_dtype(DType::BF16)
        .linear(w.get().to_dtype(DType::BF16));
    assert_eq!(found.dtype(), DType::BF16);
    wanted.realize().unwrap();
    let bits = |t: &Tensor| t.to_dtype(DType::F32).to_vec::<f32>().unwrap();
    assert_eq!(bits(&found), bits(&wanted));
    // A scope around a run has no effect: the function was recorded outside of one.
    let plain = compile(Spec::new(DType::F32, ("n", 8)), |x| x.linear(&w)).unwrap();
    let found = autocast(DType::BF16, || plain.run(&x)).unwrap();
    assert_eq!(found.dtype(), DType::F32);
}

#[test]
fn what_is_cast_in_a_checkpoint_is_cast_again() {
    let (x, w) = pair();
    let once = |f: &dyn Fn() -> Tensor| {
        w.zero_grad();
        autocast(DType::BF16, f)
            .to_dtype(DType::F32)
            .square()
            .sum(())
            .backward()
            .unwrap();
        w.grad().unwrap().to_vec::<f32>().unwrap()
    };
    let found = once(&|| checkpoint(|x| x.linear(&w).tanh(), &x));
    assert_eq!(found, once(&|| x.linear(&w).tanh()));
}

#[test]
fn double_backward_goes_through_the_casts() {
    let (x, w) = pair();
    let x = x.requires_grad_(true);
    let y = autocast(DType::BF16, || x.linear(&w).tanh().sum(()));
    let (g,) = grad_with(&y, (&x,), Grad::new().create_graph(true)).unwrap();
    assert_eq!(g.dtype(), DType::F32);
    g.square().sum(()).backward().unwrap();
    let penalty = w.grad().unwrap();
    assert_eq!(penalty.dtype(), DType::F32);
    assert!(penalty.abs().sum(()).item::<f32>().unwrap() > 0.0);
}

#[test]
fn a_custom_function_says_what_it_does() {
    let (x, w) = pair();
    let linear = || {
        custom_function(
            |(x, w): (Tensor, Tensor)| (x.matmul(w.t()), (x, w)),
            |(x, w), g: Tensor| (g.matmul(&w), g.t().matmul(&x)),
        )
    };
    // Without a rule its operations are cast as everywhere, and so is its derivative.
    let y = autocast(DType::BF16, || linear().apply((&x, &w)));
    assert_eq!(y.dtype(), DType::BF16);
    // With a rule, its inputs are cast to a dtype and nothing else is cast.
    for dtype in [DType::F32, DType::BF16] {
        let f = linear().cast_inputs(dtype);
        let y = autocast(DType::F16, || f.apply((&x, &w)));
        assert_eq!(y.dtype(), dtype);
        w.zero_grad();
        y.to_dtype(DType::F32).sum(()).backward().unwrap();
        assert_eq!(w.grad().unwrap().dtype(), DType::F32);
        assert_eq!(f.apply((&x, &w)).dtype(), DType::F32);
    }
}

#[test]
fn what_can_not_be_cast_is_an_error_with_what_to_do() {
    let x = Tensor::rand([3, 2], DType::F32);
    let inside = Autocast::new(DType::F16).list(AutocastList::Cuda);
    let y = {
        let _inside = set_autocast(inside);
        x.binary_cross_entropy(&x)
    };
    let text = y.to_vec::<f32>().unwrap_err().to_string();
    assert!(
        text.contains("use binary_cross_entropy_with_logits"),
        "{text}"
    );
    assert!(text.contains("scopes.rs"), "{text}");
    let y = autocast(DType::F32, || x.matmul(x.t()));
    let text = y.to_vec::<f32>().unwrap_err().to_string();
    assert!(
        text.contains("autocast is to f16 or bf16, not f32"),
        "{text}"
    );
    // f64, integers and operations in no list are unchanged.
    let (wide, ints) = (x.to_dtype(DType::F64), Tensor::arange(0, 4, 1));
    autocast(DType::BF16, || {
        assert_eq!(wide.matmul(wide.t()).dtype(), DType::F64);
        assert_eq!(ints.sum(()).dtype(), DType::I64);
        assert_eq!((&x + 1.0).dtype(), DType::F32);
    });
}

#[test]
fn the_list_is_that_of_the_device() {
    let x = Tensor::ones([4], DType::BF16);
    assert_eq!(autocast(DType::BF16, || x.exp()).dtype(), DType::BF16);
    let _gpu = set_autocast(Autocast::new(DType::BF16).list(AutocastList::Cuda));
    assert_eq!(x.exp().dtype(), DType::F32);
}
