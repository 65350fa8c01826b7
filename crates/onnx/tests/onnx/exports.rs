//! Functions that Kiln exports.

use crate::peers::Cases;
use kiln_nn::optim::{AdamW, Optimizer, SGD, clip_grad_norm_};
use kiln_nn::*;
use kiln_onnx::{Export, Model, Port, export, load};
use kiln_tensor::{
    DType, Scan, Spec, Tensor, Var, WhileLoop, compile, cond, scan_with, while_loop_with,
};
use std::path::PathBuf;

type Checked = std::result::Result<(), Box<dyn std::error::Error>>;

fn rows(last: i64) -> Spec {
    Spec::new(DType::F32, ("batch", last))
}

fn randn(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, DType::F32).realize().unwrap().clone()
}

/// A perceptron, a network of convolutions with batch norms, recurrent layers as loops, and a transformer's block, with
/// every version.
#[test]
fn layers_of_each_kind() -> Checked {
    let cases = Cases::new("layers", [1e-4, 1e-5]);
    let mlp = sequential![
        Linear::new(5, 16),
        GELU::new(),
        LayerNorm::new(16),
        Linear::new(16, 16),
        RMSNorm::new(16),
        SiLU::new(),
        Linear::new(16, 3)
    ]?;
    let cnn = sequential![
        Conv2d::new(3, 8, 3),
        BatchNorm2d::new(8),
        ReLU::new(),
        MaxPool2d::new(2),
        GroupNorm::new(2, 8),
        AvgPool2d::new(2),
        Flatten::new(),
        Linear::new(8 * 3 * 3, 4)
    ]?;
    let (lstm, gru) = (LSTM::new(4, 6)?, GRU::new(4, 6)?);
    let encoder = TransformerEncoderLayer::new(16, 4)?;
    for module in [&mlp as &dyn Module, &cnn, &lstm, &gru, &encoder] {
        module.eval();
        module.named_parameters();
    }
    for opset in 17..=28 {
        let how = || Export::new().opset(opset);
        let has = |path: PathBuf, op: &str, since: i64| {
            let text = String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
            assert_eq!(text.contains(op), opset >= since, "{op} in version {opset}");
        };
        let f = compile(rows(5), |x| mlp.call(&x).softmax(1))?;
        let path = cases.add(
            &format!("mlp-{opset}"),
            &f,
            &[&[randn(&[1, 5])], &[randn(&[4, 5])]],
            how(),
        )?;
        has(path.clone(), "Gelu", 20);
        has(path, "RMSNormalization", 23);
        let images = Spec::new(DType::F32, ("batch", 3, 16, 16));
        let f = compile(images, |x| cnn.call(&x))?;
        let path = cases.add(
            &format!("cnn-{opset}"),
            &f,
            &[&[randn(&[1, 3, 16, 16])], &[randn(&[3, 3, 16, 16])]],
            how(),
        )?;
        has(path, "GroupNormalization", 21);
        let sequence = || Spec::new(DType::F32, ("length", "batch", 4));
        let sets: [&[Tensor]; 2] = [&[randn(&[5, 3, 4])], &[randn(&[2, 2, 4])]];
        let f = compile(sequence(), |x| lstm.call(&x))?;
        cases.add(&format!("lstm-{opset}"), &f, &sets, how())?;
        let f = compile(sequence(), |x| gru.call(&x).0)?;
        cases.add(&format!("gru-{opset}"), &f, &sets, how())?;
        let f = compile(Spec::new(DType::F32, ("length", "batch", 16)), |x| {
            encoder.call(&x)
        })?;
        let path = cases.add(
            &format!("encoder-{opset}"),
            &f,
            &[&[randn(&[5, 2, 16])], &[randn(&[3, 4, 16])]],
            how(),
        )?;
        has(path.clone(), "Attention", 23);
        has(path, "LayerNormalization", 17);
    }
    cases.beside_onnxruntime();
    Ok(())
}

/// Names, sizes, weights in a second file, and an older file that stays where an export fails.
#[test]
fn names_and_files() -> Checked {
    let cases = Cases::new("names", [1e-5, 1e-6]);
    let layer = Linear::new(40, 20)?;
    layer.named_parameters();
    let scale = Tensor::full([20], 2.0, DType::F32).realize()?.clone();
    let f = compile([rows(40), rows(40)], |[x, y]| (layer.call(x) * &scale, y))?;
    let sets: [&[Tensor]; 1] = [&[randn(&[3, 40]), randn(&[3, 40])]];
    let path = cases.add("defaults", &f, &sets, Export::new())?;
    let model = load(&path)?;
    let text = |ports: &[Port]| {
        ports
            .iter()
            .map(|p| format!("{}: {p}", p.name))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        text(model.inputs()),
        ["input.0: f32[batch, 40]", "input.1: f32[batch, 40]"]
    );
    assert_eq!(
        text(model.outputs()),
        ["output.0: f32[batch, 20]", "output.1: f32[batch, 40]"]
    );
    let bytes = std::fs::read(&path)?;
    for name in ["weight", "bias", "captured.0"] {
        assert!(
            bytes.windows(name.len()).any(|w| w == name.as_bytes()),
            "{name}"
        );
    }

    let how = || {
        Export::new()
            .external_data(true)
            .inputs(["x", "y"])
            .outputs(["scaled", "same"])
    };
    let path = cases.add("external", &f, &sets, how())?;
    assert_eq!(load(&path)?.inputs()[1].name, "y");
    assert!(std::fs::metadata(path.with_extension("onnx.data"))?.len() >= 4 * 800);
    assert!(std::fs::metadata(&path)?.len() < 1500);

    // A second file from a size on, as at 2 GB: x has 3,200 bytes of weights and captured values, and 80.
    for (most, second) in [(3359, true), (3360, false)] {
        let how = Export::new().external_data_above(most);
        let path = cases.add(&format!("above-{most}"), &f, &sets, how)?;
        assert_eq!(path.with_extension("onnx.data").exists(), second, "{most}");
    }

    for (how, wanted) in [
        (Export::new().opset(16), "opset 17 to 28, not 16"),
        (
            Export::new().inputs(["x"]),
            "the function has 2 inputs, and 1 are named",
        ),
        (
            Export::new().inputs(["x", "x"]),
            "two inputs or outputs are named `x`",
        ),
    ] {
        let e = export(&f, &path, how).unwrap_err();
        assert!(e.message().contains(wanted), "{e}");
    }
    assert_eq!(load(&path)?.inputs()[1].name, "y");
    cases.beside_onnxruntime();
    Ok(())
}

/// Branches, and loops that go backwards, count, and read values of the graph around them.
#[test]
fn branches_and_loops() -> Checked {
    let cases = Cases::new("control", [1e-5, 1e-6]);
    let f = compile(rows(3), |x| {
        let far = &x * 3.0;
        cond(x.sum(()).gt(0.0), || &far + 1.0, || x.exp())
    })?;
    let ones = Tensor::ones([2, 3], DType::F32);
    cases.add("branch", &f, &[&[-&ones], &[ones]], Export::new())?;
    for reverse in [false, true] {
        let f = compile(rows(3), |x| {
            let step = x.mean(0);
            let how = Scan::new().reverse(reverse);
            scan_with(x.sum(0), &x, how, |total: Tensor, row: Tensor| {
                let next = (total * 0.5 + &row).tanh();
                (next.clone(), next + &step)
            })
        })?;
        cases.add(
            &format!("loop-{reverse}"),
            &f,
            &[&[randn(&[5, 3])], &[randn(&[1, 3])]],
            Export::new(),
        )?;
    }
    // Loops that a condition ends: at once, after some turns, and after the most turns.
    for most in [None, Some(3)] {
        let f = compile(rows(3), |x| {
            let step = x.abs().amax(()) + 1.0;
            let how = WhileLoop::new().max_trips(most);
            while_loop_with(
                (x.sum(0), Tensor::scalar(0i64)),
                how,
                |(total, _)| total.amax(()).lt(20.0),
                |(total, turns)| (total + &step, turns + 1),
            )
        })?;
        let sets = [1.0, 30.0].map(|value| [Tensor::full([2, 3], value, DType::F32)]);
        let sets: [&[Tensor]; 2] = [&sets[0], &sets[1]];
        cases.add(&format!("while-{most:?}"), &f, &sets, Export::new())?;
    }
    cases.beside_onnxruntime();
    Ok(())
}

/// Operations that are written by several operators: shifts by any number, angles, lengths, and casts to floats of 8
/// bits.
#[test]
fn operations_of_several_operators() -> Checked {
    let cases = Cases::new("several", [1e-5, 1e-6]);
    let vector = |dtype| Spec::new(dtype, "n");
    let far = f32::INFINITY;
    let a = [0.0f32, -0.0, 0.0, 1.0, -1.0, -2.5, 1e30, far, -3.0];
    let b = [0.0f32, -1.0, 2.0, 1.0, -1.0, 0.5, 1e30, 1.0, -0.0];
    let pair = [vector(DType::F32), vector(DType::F32)];
    let f = compile(pair, |[a, b]| (a.atan2(&b), a.hypot(&b), a.erfc()))?;
    cases.add(
        "angles",
        &f,
        &[&[Tensor::from(a), Tensor::from(b)]],
        Export::new(),
    )?;

    let counts = [0i64, 1, 3, 7, 31, 63, 64, -1];
    let values = [5i64, -5, 127, -128, 1 << 20, i64::MIN, -1, 3];
    for dtype in [DType::I8, DType::U8, DType::I32, DType::I64] {
        let f = compile([vector(dtype), vector(dtype)], |[a, b]| {
            (a.bitwise_left_shift(&b), a.bitwise_right_shift(&b))
        })?;
        let sets = [values, counts].map(|list| Tensor::from(list).to_dtype(dtype));
        let sets = sets.map(|t| t.realize().unwrap().clone());
        cases.add(&format!("shifts-{dtype}"), &f, &[&sets], Export::new())?;
    }

    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let f = compile(vector(DType::F32), |x| {
            (x * 2.0).to_dtype(dtype).to_dtype(DType::F32)
        })?;
        let x = Tensor::from([0.1f32, -3.3, 100.0, 300.0, 1e6, f32::NAN, 0.001]);
        cases.add(
            &format!("bytes-{dtype}"),
            &f,
            &[&[x]],
            Export::new().opset(19),
        )?;
    }
    cases.beside_onnxruntime();
    Ok(())
}

/// A training step gives the loss and the next weights and moments, which the next run takes: a network of convolutions
/// with clipped gradients, and a perceptron in each version.
#[test]
fn training_steps() -> Checked {
    let cases = Cases::new("steps", [1e-3, 1e-5]);
    let cnn = sequential![
        Conv2d::new(1, 4, 3),
        ReLU::new(),
        BatchNorm2d::new(4),
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(4 * 3 * 3, 5)
    ]?;
    let mut opt = Optimizer::new(cnn.parameters(), AdamW::new().lr(0.01))?;
    let images = Spec::new(DType::F32, ("batch", 1, 8, 8));
    let f = compile((images, Spec::new(DType::I64, "batch")), |(x, y)| {
        opt.zero_grad();
        let loss = cnn.call(x).cross_entropy(y);
        loss.backward()?;
        clip_grad_norm_(cnn.parameters(), 1.0)?;
        opt.step()?;
        kiln_tensor::Result::Ok(loss)
    })?;
    let labels = |list: &[i64]| Tensor::from_slice(list, [list.len()]);
    let sets: [&[Tensor]; 3] = [
        &[randn(&[6, 1, 8, 8]), labels(&[0, 1, 2, 3, 4, 0])],
        &[randn(&[6, 1, 8, 8]), labels(&[4, 1, 0, 3, 2, 2])],
        &[randn(&[3, 1, 8, 8]), labels(&[1, 1, 4])],
    ];
    let how = || Export::new().inputs(["x", "y"]).outputs(["loss"]);
    let path = cases.add("cnn", &f, &sets, how())?;
    let model = load(&path)?;
    let names = |ports: &[Port]| ports.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(model.inputs()), ["x", "y"]);
    let outputs = names(model.outputs());
    assert_eq!(outputs[0], "loss");
    for (name, _) in cnn.named_parameters() {
        assert!(outputs.contains(&format!("{name}.next")), "{outputs:?}");
    }

    let sgd = SGD::new().lr(0.1).momentum(0.9);
    for opset in 17..=28 {
        let mlp = sequential![Linear::new(5, 8), Tanh::new(), Linear::new(8, 3)]?;
        let mut opt = Optimizer::new(mlp.parameters(), sgd.clone())?;
        let f = compile((rows(5), Spec::new(DType::I64, "batch")), |(x, y)| {
            opt.zero_grad();
            let loss = mlp.call(x).cross_entropy(y);
            loss.backward()?;
            opt.step()?;
            kiln_tensor::Result::Ok(loss)
        })?;
        let set = || [randn(&[3, 5]), labels(&[2, 0, 1])];
        let sets: [&[Tensor]; 2] = [&set(), &set()];
        cases.add(&format!("mlp-{opset}"), &f, &sets, how().opset(opset))?;
    }
    cases.beside_onnxruntime();
    Ok(())
}

/// An error lists all operations that ONNX lacks, with their lines.
#[test]
fn what_onnx_lacks() -> Checked {
    let path = std::env::temp_dir().join("kiln-onnx-lacking.onnx");
    let f = compile(rows(3), |x| x.lgamma() + x.digamma())?;
    let e = export(&f, &path, Export::new()).unwrap_err();
    let text = e.message();
    assert!(
        text.starts_with("2 operations can't be exported with opset 21:\n"),
        "{text}"
    );
    for wanted in [
        "lgamma: ONNX has no counterpart of lgamma, at",
        "digamma: ONNX has no counterpart of digamma, at",
        "exports.rs:",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    let f = compile(rows(3), |x| &x + &x.rand_like())?;
    assert!(
        export(&f, &path, Export::new())
            .unwrap_err()
            .message()
            .contains("random numbers")
    );
    let f = compile(Spec::new(DType::I32, 3), |x| x.bitwise_and(6))?;
    let e = export(&f, &path, Export::new().opset(17)).unwrap_err();
    assert!(e.message().contains("bitwise logic needs opset 18"), "{e}");
    assert!(!path.exists());
    Ok(())
}

/// Errors of models, and of the tensors that they give, are at the line that called.
#[test]
fn errors_are_at_the_users_line() -> Checked {
    let path = std::env::temp_dir().join("kiln-onnx-lines.onnx");
    let table = Var::new(Tensor::ones([4, 2], DType::F32))?;
    let rows = Spec::new(DType::I64, 3);
    let f = compile(rows, |i| table.index_select(0, i))?;
    export(&f, &path, Export::new())?;
    let bytes = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;
    let (wrong, wide) = (Tensor::from([0i64, 9, 1]), Tensor::from([[0i64]; 3]));
    let model = Model::from_bytes(bytes.clone())?;
    let boxed: Box<dyn Forward> = Box::new(Model::from_bytes(bytes)?);
    let line = line!();
    let errors = [
        model.record([&wrong])?[0].to_vec::<f32>().unwrap_err(),
        model.call(&wrong).to_vec::<f32>().unwrap_err(),
        boxed.call(&wrong).to_vec::<f32>().unwrap_err(),
        model.run([("input", &wrong)]).unwrap_err(),
        model.run([("rows", &wrong)]).unwrap_err(),
        model.run([("input", &wide)]).unwrap_err(),
        Model::from_bytes(&b"\0"[..]).err().unwrap(),
        load("none.onnx").err().unwrap(),
    ];
    for (i, e) in errors.iter().enumerate() {
        let at = (e.loc().file(), e.loc().line());
        assert_eq!(at, (file!(), line + 2 + i as u32), "{e}");
    }
    Ok(())
}
