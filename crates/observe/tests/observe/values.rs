//! Figures and values of what a function records.

use kiln_nn::{
    BatchNorm1d, Dropout, Forward, GELU, Hookable, Linear, Module, MultiheadAttention, ReLU, Tanh,
    extract, sequential,
};
use kiln_observe::{Column, Convention, flops, summary, trace_values};
use kiln_tensor::{Compiled, DType, Result, Spec, Tensor, Var, compile, scan};
use std::sync::{Arc, Mutex};

#[test]
fn values_are_traced_with_lines() -> Result<()> {
    let line = line!() + 3;
    let ((), values) = trace_values(|| {
        let w = Var::parameter(Tensor::from([2.0f32, -1.0])).expect("a parameter");
        let y = (Tensor::from([0.0f32, f32::NAN]) * &w).softmax(0);
        y.sum(()).backward().expect("a gradient");
        let _ = Tensor::zeros([0, 3], DType::I64) + 1;
    })?;
    let seen = values.values();
    let softmax = seen
        .iter()
        .find(|v| v.called == "softmax")
        .expect("the softmax");
    assert_eq!((softmax.loc.line(), softmax.nans), (line, 2));
    assert!(softmax.range.0.is_nan());
    let product = &seen[0];
    assert_eq!(
        (product.called, product.nans, product.range),
        ("mul", 1, (0.0, 0.0))
    );
    assert_eq!(product.fact.to_string(), "f32[2]");
    assert!(seen.iter().any(|v| v.called == "backward"), "{values}");
    assert!(values.to_string().contains("values.rs"), "{values}");
    let inside = compile(Spec::new(DType::F32, 2), |x| {
        trace_values(|| x.exp()).map(|(y, _)| y)
    });
    assert!(
        inside
            .expect_err("no values")
            .to_string()
            .contains("trace_values")
    );
    Ok(())
}

#[test]
fn a_table_shows_layers_columns_and_depth() -> Result<()> {
    let block =
        sequential!["fc": Linear::new(4, 8), "norm": BatchNorm1d::new(8), "act": ReLU::new()]?;
    let model = sequential!["block": block, "drop": Dropout::new(0.5), "head": Linear::new(8, 2)]?;
    model["head"].requires_grad_(false)?;
    let table = summary(&model, Spec::new(DType::F32, [16, 4]))?;
    let paths: Vec<&str> = table.layers().iter().map(|l| l.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "",
            "block",
            "block.fc",
            "block.norm",
            "block.act",
            "drop",
            "head"
        ]
    );
    assert_eq!(
        (table.total_params(), table.trainable_params()),
        (40 + 16 + 18, 56)
    );
    // The linear layer reads 16x4 inputs, 8x4 weights and 8 biases, and writes 16x8 numbers.
    let fc = &table.layers()[2];
    assert_eq!((fc.read, fc.written), (4 * (64 + 32 + 8), 4 * 128));
    let act = &table.layers()[4];
    assert_eq!(
        (act.read, act.written, act.activations()),
        (4 * 128, 4 * 128, 4 * 128)
    );
    // Values within a block are not counted; running statistics were not updated.
    assert_eq!(table.layers()[1].written, 4 * 128);
    assert_eq!(
        model["block"].named_buffers()[0].1.to_vec::<f32>()?,
        [0.0; 8]
    );
    let text = table
        .clone()
        .depth(1)
        .columns([Column::OutputSize, Column::NumParams, Column::Trainable])
        .to_string();
    assert!(
        !text.contains("(fc)")
            && text.contains("├─Sequential (block)  [16, 8]      56          true"),
        "{text}"
    );
    assert!(
        text.contains("├─Linear (head)       [16, 2]      18          false"),
        "{text}"
    );
    assert!(
        table.to_string().contains("Total mult-adds: 768"),
        "{table}"
    );
    let e = summary(&model, Spec::new(DType::F32, ("batch", 4))).expect_err("a symbol");
    assert!(e.to_string().contains("\"batch\""), "{e}");
    let e = summary(&model, Spec::new(DType::F32, [16, 5])).expect_err("a wrong size");
    assert!(e.to_string().contains("tests/observe/values.rs:"), "{e}");
    assert!(e.to_string().contains("Linear(in_features=4"), "{e}");
    Ok(())
}

#[test]
fn the_norm_of_a_parameter_is_no_layer() -> Result<()> {
    let w = Var::parameter(Tensor::ones([8, 8], DType::F32))?;
    let found = flops(Spec::new(DType::F32, [2, 8]), |x| x * w.vector_norm(2.0, 1))?;
    assert_eq!(found.total(Convention::Torchinfo), 0);
    Ok(())
}

#[test]
fn loops_attention_and_backward_are_counted() -> Result<()> {
    let w = Var::parameter(Tensor::zeros([8, 8], DType::F32))?;
    let steps = flops(
        (
            Spec::new(DType::F32, [2, 8]),
            Spec::new(DType::F32, [5, 2, 8]),
        ),
        |(h, xs)| {
            scan((h,), xs, |(h,), x| {
                let h = (h.matmul(&w) + x).tanh();
                ((h.clone(),), h)
            })
        },
    )?;
    assert_eq!(steps.total(Convention::MultAdds), 5 * 2 * 8 * 8);

    let training = flops(Spec::new(DType::F32, [3, 8]), |x| -> Result<Tensor> {
        let loss = x.matmul(&w).square().sum(());
        loss.backward()?;
        Ok(loss)
    })?;
    // The product, and the gradient of the weight; the input has none.
    assert_eq!(
        training.total(Convention::FlopCounterMode),
        2 * 2 * 3 * 8 * 8
    );
    assert!(w.grad().is_none(), "nothing is kept");

    // More than fits a number.
    let (a, b) = (
        Spec::new(DType::F32, [1 << 30, 1 << 30]),
        Spec::new(DType::F32, [1 << 30, 4]),
    );
    let huge = flops((a, b), |(a, b)| {
        a.matmul(b).matmul(Tensor::zeros([4, 1 << 30], DType::F32))
    })?;
    assert_eq!(huge.total(Convention::MultAdds), (1 << 62) + (1 << 62));
    assert_eq!(huge.total(Convention::FlopCounterMode), u64::MAX);

    // The unused map of attention weights is not computed.
    let attention = MultiheadAttention::new(8, 2)?;
    let spec = Spec::new(DType::F32, [5, 3, 8]);
    let all = flops(spec.clone(), |x| attention.call((&x, &x, &x)).0)?;
    let (projections, products) = (4 * 15 * 8 * 8, 3 * 2 * (5 * 5 * 8 / 2) * 2);
    assert_eq!(
        all.total(Convention::MultAdds),
        projections + products,
        "{all}"
    );
    Ok(())
}

#[test]
fn hooks_inside_compile_cost_the_tapped_values_alone() -> Result<()> {
    let model = sequential![
        Linear::new(4, 8),
        Tanh::new(),
        GELU::new(),
        Linear::new(8, 2)
    ]?;
    let spec = Spec::new(DType::F32, [16, 4]);
    let plain = compile(spec.clone(), |x| vec![model.call(x)])?;
    let kernels = |f: &Compiled<Tensor, Vec<Tensor>>| f.plan().run.len();

    // Hooks on every layer, which record something that nobody reads.
    let seen: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let mut handles = Vec::new();
    for module in model.modules() {
        let seen = seen.clone();
        handles.push(module.register_forward_hook(move |_, _, y| {
            seen.lock().expect("no panic").push(y[0].square().sum(()));
        })?);
    }
    let watched = compile(spec.clone(), |x| vec![model.call(x)])?;
    assert_eq!(watched.plan().run, plain.plan().run);
    seen.lock().expect("no panic").clear();

    // The value between two layers that are one kernel.
    let tapped = compile(spec, |x| {
        let y = model.call(x);
        vec![y, seen.lock().expect("no panic")[1].clone()]
    })?;
    assert!(
        (1..=2).contains(&(kernels(&tapped) - kernels(&plain))),
        "{}",
        tapped.explain()
    );
    let x = Tensor::randn([16, 4], DType::F32);
    let (y, found) = (plain.run(&x)?, tapped.run(&x)?);
    assert_eq!(y[0].to_vec::<f32>()?, found[0].to_vec::<f32>()?);
    let (_, [act]) = extract(&model, ["1"], &x)?;
    let hidden = act[0].square().sum(());
    let (seen, wanted) = (found[1].item::<f32>()?, hidden.item::<f32>()?);
    assert!(
        (seen - wanted).abs() < 1e-5 * wanted,
        "{seen}, not {wanted}"
    );
    handles.iter().for_each(|handle| handle.remove());
    Ok(())
}
