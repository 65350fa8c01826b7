//! A package computes the same results as the compiled functions.

use crate::support::{batch, buffer, trainee};
use kiln_export::Builder;
use kiln_nn::{BatchNorm2d, Conv2d, Forward, Kernel, Module, ReLU, sequential};
use kiln_package::{Buffer, DType, Error, Features, Package, Size, TensorInfo};
use kiln_tensor::{Calibration, Spec, Tensor, compile, no_grad, with_seed};

#[test]
fn an_entry_gives_the_bits_of_its_function_for_any_batch() {
    let t = trainee(1);
    let package = t.package();
    let forward = package.entry("forward").unwrap();
    for n in [2, 1, 7, 64] {
        let (x, _) = batch(n as u64, n);
        let wanted = t.forward.run(&x).unwrap().to_bytes().unwrap();
        let found = forward.run([("rows", buffer(&x))]).unwrap();
        assert_eq!(
            found.get("chances").unwrap().to_bytes().unwrap(),
            wanted,
            "{n} rows"
        );
        assert_eq!(found[0].shape(), [n as i64, 2]);
        let by_order = forward.run(buffer(&x)).unwrap();
        assert_eq!(by_order[0].to_bytes().unwrap(), wanted);
    }
}

#[test]
fn training_continues_in_a_package_with_equal_bits() {
    let mut t = trainee(2);
    let batches: Vec<_> = [5, 9, 2, 5, 1]
        .into_iter()
        .map(|n| batch(n as u64, n))
        .collect();
    with_seed(7, || {
        // Some training happens before the export.
        t.step.run((&batches[0].0, &batches[0].1)).unwrap();
        let package = t.package();
        let step = package.entry("train_step").unwrap();
        for (i, (x, y)) in batches.iter().enumerate() {
            if i == 2 {
                t.optimizer.set_lr(0.05).unwrap();
                package.set_number("optimizer.numbers", "lr", 0.05).unwrap();
            }
            // A batch of one row has no variance: both must fail.
            let wanted = t.step.run((x, y));
            let found = step.run([("labels", buffer(y)), ("rows", buffer(x))]);
            let (Ok((loss, sum)), Ok(found)) = (&wanted, &found) else {
                assert!(
                    wanted.is_err() && found.is_err(),
                    "{i}: {wanted:?} {found:?}"
                );
                continue;
            };
            let bytes = |t: &Tensor| t.to_bytes().unwrap();
            assert_eq!(
                found.get("loss").unwrap().to_bytes().unwrap(),
                bytes(loss),
                "step {i}"
            );
            assert_eq!(found.get("ones").unwrap().to_bytes().unwrap(), bytes(sum));
        }
        for (name, var) in t.kept() {
            let found = package.get(&name).unwrap().to_bytes().unwrap();
            assert_eq!(found, var.get().to_bytes().unwrap(), "{name}");
        }
        let last = package.get("last").unwrap().to_bytes().unwrap();
        assert_eq!(last, t.last.get().to_bytes().unwrap());
    });
}

#[test]
fn a_package_says_what_its_entries_take_give_and_change() {
    let package = trainee(3).package();
    assert_eq!(
        package.entries().collect::<Vec<_>>(),
        ["forward", "train_step"]
    );
    assert_eq!(package.metadata()["task"], "a test");
    assert_eq!(package.asset("classes.txt").unwrap(), b"no\nyes\n");
    assert_eq!(package.assets().collect::<Vec<_>>(), ["classes.txt"]);
    assert!(package.written_by().starts_with("kiln "));
    let forward = package.interface("forward").unwrap();
    let rows = TensorInfo {
        name: "rows".into(),
        dtype: DType::F32,
        shape: vec![Size::Symbolic("batch".into()), Size::Known(3)],
    };
    assert_eq!(forward.inputs, [rows]);
    assert_eq!(forward.outputs[0].to_string(), "f32[batch, 2]");
    assert!(forward.writes.is_empty() && !forward.random);
    assert!(forward.reads.contains(&"0.weight".to_string()));
    let step = package.interface("train_step").unwrap();
    assert!(step.random);
    // Both functions captured the same tensor.
    assert_eq!(forward.constants, step.constants);
    for name in [
        "3.bias",
        "1.running_mean",
        "optimizer.exp_avg_sq.0.weight",
        "optimizer.step",
        "last",
    ] {
        assert!(
            step.writes.contains(&name.to_string()),
            "{name} in {:?}",
            step.writes
        );
    }
    assert!(package.graph("forward").unwrap().contains("softmax"));
    let memory = package
        .entry("forward")
        .unwrap()
        .memory(&[("batch", 8)])
        .unwrap();
    assert!(memory.weights >= (3 * 5 + 5 * 2) * 4 && memory.run.outputs == 8 * 2 * 4);
}

#[test]
fn wrong_inputs_are_named() {
    let package = trainee(4).package();
    let step = package.entry("train_step").unwrap();
    let (x, y) = batch(1, 4);
    let (x, y) = (buffer(&x), buffer(&y));
    let f64s = Buffer::zeros(DType::F64, &[4, 3]).unwrap();
    let wide = Buffer::zeros(DType::F32, &[4, 4]).unwrap();
    let five = Buffer::zeros(DType::I64, &[5]).unwrap();
    let beyond = Buffer::from_slice(&[0i64, 7, 0, 0], &[4]).unwrap();
    let text = |given: kiln_package::Inputs| step.run(given).unwrap_err().to_string();
    let both = |x: &Buffer, y: &Buffer| [("rows", x.clone()), ("labels", y.clone())].into();
    for (found, wanted) in [
        (
            text(both(&f64s, &y)),
            "input `rows` must be f32[batch, 3], not f64[4, 3]",
        ),
        (
            text(both(&wide, &y)),
            "input `rows` must be f32[batch, 3], not f32[4, 4]",
        ),
        (
            text(both(&x, &five)),
            "`batch` is 4 by input `rows`, and 5 by input `labels`",
        ),
        (text(both(&x, &beyond)), "index 7"),
        (
            text(x.clone().into()),
            "takes 2 inputs, rows, labels, and was given 1",
        ),
        (
            text([("rows", x.clone())].into()),
            "also takes input `labels`",
        ),
        (
            text([("rows", x.clone()), ("rows", x.clone())].into()),
            "given twice",
        ),
        (
            text([("images", x.clone())].into()),
            "no input `images`; there is `rows`, `labels`",
        ),
    ] {
        assert!(found.contains(wanted), "{found}, not {wanted}");
    }
    assert!(step.memory(&[]).is_err() && step.memory(&[("batch", 4), ("x", 1)]).is_err());
    let missing = package.entry("backward").unwrap_err();
    assert!(
        matches!(missing, Error::Missing { what: "entry", .. }),
        "{missing}"
    );
}

#[test]
fn errors_of_writing_name_the_users_line() {
    let t = trainee(5);
    let error = |b: Builder| b.to_bytes().unwrap_err().to_string();
    for (found, wanted) in [
        (
            error(t.builder().inputs(["a"])),
            "`train_step` has 2 inputs",
        ),
        (error(Builder::new().outputs(["a"])), "no entry yet"),
        (
            error(t.builder().entry("forward", &t.forward)),
            "two entries are called `forward`",
        ),
        (
            error(t.builder().entry("../up", &t.forward)),
            "no entry can be called",
        ),
        (
            error(t.builder().var("0.weight", &t.last)),
            "two states are called `0.weight`",
        ),
        (
            error(t.builder().asset("a/../b", "")),
            "no file can be called",
        ),
        (error(t.builder().inputs(["a", "a"])), "have one name"),
    ] {
        assert!(found.contains(wanted), "{found}, not {wanted}");
    }
    let line = t
        .builder()
        .inputs(["a"])
        .to_bytes()
        .unwrap_err()
        .to_string();
    assert!(line.contains("runs.rs"), "{line}");
}

#[test]
fn entries_run_empty_batches() {
    let network = with_seed(5, || {
        let conv = Conv2d::new(3, 4, Kernel::new(3).padding(1));
        sequential![conv, BatchNorm2d::new(4), ReLU::new()].unwrap()
    });
    network.eval();
    let mut calibration = Calibration::new();
    let x = Tensor::ones([2, 3, 6, 5], DType::F32);
    no_grad(|| calibration.observe(|| network.call(&x))).unwrap();
    let images = || Spec::new(DType::F32, ("batch", 3, "height", 5));
    let floats = compile(images(), |x| network.call(x)).unwrap();
    let quantised = compile(images(), |x| {
        no_grad(|| calibration.quantized(|| network.call(x)))
    });
    let rows = Spec::new(DType::F32, ("batch", 3));
    let sums = compile(rows, |x| (x.sum(0), x.relu().prod(()))).unwrap();
    let package = Builder::new()
        .module("", &network)
        .entry("floats", &floats)
        .entry("quantised", &quantised.unwrap())
        .entry("sums", &sums);
    let package = Package::from_bytes(&package.to_bytes().unwrap()).unwrap();
    for name in ["floats", "quantised"] {
        let entry = package.entry(name).unwrap();
        for [n, h] in [[0, 6], [0, 1], [0, 6]] {
            let none = Buffer::zeros(DType::F32, &[n, 3, h, 5]).unwrap();
            let found = entry.run(none).unwrap();
            assert_eq!(
                (found[0].shape(), found[0].dtype()),
                (&[n, 4, h, 5][..], DType::F32)
            );
        }
    }
    let none = Buffer::zeros(DType::F32, &[0, 3]).unwrap();
    let found = package.entry("sums").unwrap().run(none).unwrap();
    assert_eq!(found[0].to_vec::<f32>().unwrap(), [0.0; 3]);
    assert_eq!(found[1].to_vec::<f32>().unwrap(), [1.0]);
}

#[test]
fn batches_that_are_too_small_are_errors() {
    let f = compile(Spec::new(DType::F32, ("n", 2)), |x| {
        // A window of two rows.
        x.narrow(0, 0, 2).sum(0)
    });
    let bytes = Builder::new().entry("f", &f.unwrap()).to_bytes().unwrap();
    let f = Package::from_bytes(&bytes).unwrap().entry("f").unwrap();
    let of = |n: i64| f.run(Buffer::zeros(DType::F32, &[n, 2]).unwrap());
    assert_eq!(of(3).unwrap()[0].to_vec::<f32>().unwrap(), [0.0; 2]);
    for n in [0, 1] {
        let text = of(n).unwrap_err().to_string();
        let wanted = format!("has no program for n = {n}; it has one for n >= 2");
        assert!(text.contains(&wanted), "{text}");
    }
}

#[test]
fn weights_that_are_folded_and_packed_are_kept_once() {
    let network = with_seed(3, || {
        let conv = Conv2d::new(16, 32, Kernel::new(5).padding(2));
        sequential![conv, BatchNorm2d::new(32), ReLU::new()].unwrap()
    });
    network.eval();
    let images = Spec::new(DType::F32, ("batch", 16, 9, 9));
    let f = compile(images, |x| network.call(x)).unwrap();
    let builder = Builder::new().module("", &network).entry("f", &f);
    let package = Package::from_bytes(&builder.to_bytes().unwrap()).unwrap();
    let entry = package.entry("f").unwrap();
    let weights = 32 * 16 * 25 * 4;
    let memory = entry.memory(&[("batch", 4)]).unwrap().run;
    assert!(
        (weights..weights * 7 / 5).contains(&memory.prepared),
        "{memory:?}"
    );
    assert!(memory.prepare_peak >= weights, "{memory:?}");
    for n in [4, 2, 1, 4, 9] {
        let x = with_seed(n as u64, || Tensor::randn([n, 16, 9, 9], DType::F32));
        let wanted = f.run(&x).unwrap().to_bytes().unwrap();
        for _ in 0..2 {
            let found = entry.run(buffer(&x)).unwrap();
            assert_eq!(found[0].to_bytes().unwrap(), wanted, "{n} images");
        }
    }
    // New weights are folded and packed again.
    let doubled: Vec<f32> = package.get("0.weight").unwrap().to_vec().unwrap();
    let doubled: Vec<f32> = doubled.into_iter().map(|w| 2.0 * w).collect();
    let (_, weight) = &network.named_parameters()[0];
    weight
        .assign(Tensor::from_slice(&doubled, [32, 16, 5, 5]))
        .unwrap();
    package
        .set(
            "0.weight",
            Buffer::from_slice(&doubled, &[32, 16, 5, 5]).unwrap(),
        )
        .unwrap();
    let x = Tensor::ones([3, 16, 9, 9], DType::F32);
    let wanted = f.run(&x).unwrap().to_bytes().unwrap();
    assert_eq!(
        entry.run(buffer(&x)).unwrap()[0].to_bytes().unwrap(),
        wanted
    );
}

#[test]
fn weights_that_are_stored_packed_give_the_same_bits_until_they_change() {
    let network = with_seed(4, || {
        let conv = Conv2d::new(16, 32, Kernel::new(5).padding(2));
        sequential![conv, BatchNorm2d::new(32), ReLU::new()].unwrap()
    });
    network.eval();
    let images = Spec::new(DType::F32, ("batch", 16, 9, 9));
    let f = compile(images, |x| network.call(x)).unwrap();
    let builder = || Builder::new().module("", &network).entry("f", &f);
    let packed = builder().packed_weights(Features::current().unwrap());
    let [plain, packed] = [builder(), packed].map(|b| {
        let package = Package::from_bytes(&b.to_bytes().unwrap()).unwrap();
        (package.entry("f").unwrap(), package)
    });
    assert!(plain.1.packed_levels().is_empty());
    assert!(!packed.1.packed_levels().is_empty());
    let same = || {
        for n in [4, 2, 1, 4, 9] {
            let x = with_seed(n as u64, || Tensor::randn([n, 16, 9, 9], DType::F32));
            let [a, b] = [&plain, &packed].map(|(entry, _)| entry.run(buffer(&x)).unwrap());
            assert_eq!(a[0].to_bytes().unwrap(), b[0].to_bytes().unwrap());
        }
    };
    same();
    let halved: Vec<f32> = plain.1.get("0.weight").unwrap().to_vec().unwrap();
    let halved: Vec<f32> = halved.into_iter().map(|w| 0.5 * w).collect();
    for (_, package) in [&plain, &packed] {
        let value = Buffer::from_slice(&halved, &[32, 16, 5, 5]).unwrap();
        package.set("0.weight", value).unwrap();
    }
    same();
}
