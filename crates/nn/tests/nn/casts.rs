//! Modules in other dtypes.

use crate::support::values;
use kiln_nn::optim::{Adam, Optimizer};
use kiln_nn::{BatchNorm1d, Forward, LayerNorm, Linear, Module, Sequential, is_norm, sequential};
use kiln_tensor::{DType, Spec, Tensor, compile, randn};

fn model() -> Sequential {
    sequential![
        "fc": Linear::new(5, 7),
        "norm": BatchNorm1d::new(7),
        "last": LayerNorm::new(7),
        "head": Linear::new(7, 3)
    ]
    .unwrap()
}

fn dtypes(m: &dyn Module) -> Vec<(String, DType)> {
    let all = m.named_parameters().into_iter().chain(m.named_buffers());
    all.map(|(name, var)| (name, var.dtype())).collect()
}

#[test]
fn floats_are_cast_where_they_are_and_all_who_hold_them_see_it() {
    let model = model();
    let mut optimizer = Optimizer::new(model.parameters(), Adam::new()).unwrap();
    let x = randn([4, 5]);
    let before = values(&model.call(&x));
    model.call(&x).sum(()).backward().unwrap();
    for (cast, dtype) in [
        (0, DType::BF16),
        (1, DType::F64),
        (2, DType::F16),
        (3, DType::F32),
    ] {
        match cast {
            0 => model.bfloat16(),
            1 => model.double(),
            2 => model.half(),
            _ => model.float(),
        }
        .unwrap();
        for (name, found) in dtypes(&model) {
            let wanted = match name.as_str() {
                "norm.num_batches_tracked" => DType::I64,
                _ => dtype,
            };
            assert_eq!(found, wanted, "{name}");
        }
        let p = model.get_parameter("fc.weight").unwrap();
        assert_eq!(p.grad().unwrap().dtype(), dtype);
        let y = model.call(x.to_dtype(dtype));
        assert_eq!(y.dtype(), dtype);
        for (a, b) in values(&y).iter().zip(&before) {
            assert!((a - b).abs() < 0.1 * (1.0 + b.abs()), "{a} {b} in {dtype}");
        }
        optimizer.zero_grad();
        y.square().mean(()).backward().unwrap();
        optimizer.set_lr(0.0).unwrap();
        optimizer.step().unwrap();
    }
}

#[test]
fn norms_are_kept_where_asked() {
    for dtype in [DType::BF16, DType::F16] {
        let model = model();
        model.to_dtype_where(dtype, &|m| !is_norm(m)).unwrap();
        for (name, found) in dtypes(&model) {
            let wanted = match name.as_str() {
                "norm.num_batches_tracked" => DType::I64,
                n if n.starts_with("norm") || n.starts_with("last") => DType::F32,
                _ => dtype,
            };
            assert_eq!(found, wanted, "{name}");
        }
        // A norm with f32 parameters takes f16 or bf16 inputs, and returns the same dtype.
        let y = model.call(randn([4, 5]).to_dtype(dtype));
        assert_eq!(y.dtype(), dtype);
        y.square().mean(()).backward().unwrap();
        for (name, p) in model.named_parameters() {
            let grad = p.grad().unwrap_or_else(|| panic!("{name} has no gradient"));
            assert_eq!(grad.dtype(), p.dtype(), "{name}");
        }
    }
}

#[test]
fn what_was_compiled_for_another_dtype_says_so() {
    let model = Linear::new(5, 2).unwrap();
    let f = compile(Spec::new(DType::F32, ("n", 5)), |x| model.call(x)).unwrap();
    f.run(randn([3, 5])).unwrap();
    model.half().unwrap();
    let e = f.run(randn([3, 5])).unwrap_err();
    let text = "`weight` is f16[2, 5] now, but was f32[2, 5] when the function was compiled; compile it again";
    assert!(e.to_string().contains(text), "{e}");
    model.float().unwrap();
    f.run(randn([3, 5])).unwrap();
}

#[test]
fn what_can_not_be_is_an_error_that_changes_nothing() {
    let model = Linear::new(5, 2).unwrap();
    let e = model.to_dtype(DType::I32).unwrap_err();
    assert!(
        e.to_string()
            .contains("parameters are floats that are computed in, not i32"),
        "{e}"
    );
    let e = compile(Spec::new(DType::F32, 5), |x| {
        model.half()?;
        kiln_tensor::Result::Ok(model.call(x))
    });
    let e = e.expect_err("cells can't be cast there").to_string();
    assert!(
        e.contains("a Var can't be cast while recording inside compile"),
        "{e}"
    );
    assert_eq!(model.weight.dtype(), DType::F32);
    let e = model.weight.to_dtype_(DType::I64).unwrap_err();
    assert!(e.to_string().contains("only floats have gradients"), "{e}");
}

#[test]
fn states_of_either_dtype_load_into_either() {
    let (wide, narrow) = (model(), model());
    narrow.bfloat16().unwrap();
    narrow.load_state_dict(&wide.state_dict(), true).unwrap();
    let p = narrow.get_parameter("fc.weight").unwrap();
    let rounded = wide
        .get_parameter("fc.weight")
        .unwrap()
        .to_dtype(DType::BF16);
    assert_eq!(p.dtype(), DType::BF16);
    assert_eq!(values(&p.get()), values(&rounded));
    wide.load_state_dict(&narrow.state_dict(), true).unwrap();
    let p = wide.get_parameter("fc.weight").unwrap();
    assert_eq!(
        (p.dtype(), values(&p.get())),
        (DType::F32, values(&rounded))
    );
}

#[test]
fn snapshots_keep_their_dtype() {
    let model = Linear::new(3, 2).unwrap();
    let old: Tensor = model.weight.get();
    model.half().unwrap();
    assert_eq!(
        (old.dtype(), model.weight.get().dtype()),
        (DType::F32, DType::F16)
    );
    // The parameter now has another dtype than the gradient. Backward fails or casts: no gradient is lost silently.
    let e = old.sum(()).backward();
    assert!(e.is_err() || model.weight.grad().is_some_and(|g| g.dtype() == DType::F16));
}
