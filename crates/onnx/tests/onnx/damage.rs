//! Damaged files give errors: no panic, and no memory beyond a limit.
//!
//! `KILN_FUZZ_SEEDS=50000 cargo test -p kiln-onnx -- damaged --nocapture` takes more of them.

use crate::hostile::part;
use crate::results::folders;
use kiln_goldens::Folder;
use kiln_nn::{Forward, Linear, Module};
use kiln_onnx::{Data, Export, Keys, Kind, Maps, Model, Text, export, load};
use kiln_tensor::{DType, Device, DimSpec, Result, Spec, Tensor, compile};
use kiln_testkit::sweep::seeds;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// Bits, lengths and ends of models are changed at random; what still loads is run on zeros. `KILN_FUZZ_SEEDS` is how many.
#[test]
fn damaged_models_are_errors() {
    let seeds = seeds(2000);
    Device::Cpu.set_memory_limit(Some(2 << 30));
    let (_folders, cases) = all_cases("damage");
    let (mut loaded, mut panics) = (0, Vec::new());
    for seed in seeds.clone() {
        let mut rng = fastrand::Rng::with_seed(seed);
        let case = &cases[rng.usize(..cases.len())];
        let bytes = damaged(std::fs::read(case.join("model.onnx")).unwrap(), &mut rng);
        match catch_unwind(|| run(bytes)) {
            Ok(was_read) => loaded += u64::from(was_read),
            Err(_) => panics.push((seed, case)),
        }
    }
    assert!(panics.is_empty(), "seeds {panics:?}");
    let count = seeds.end - seeds.start;
    assert!(loaded >= count / 20, "{loaded} models were read");
    if let Some(most) = peak() {
        println!("{loaded} of {count} were read; {} MiB at most", most >> 20);
        assert!(most < 4 << 30, "{most} bytes");
    }
}

/// The folders of all models with expected results, and these.
fn all_cases(name: &str) -> ([Folder; 4], Vec<PathBuf>) {
    let made = [
        Folder::onnx,
        Folder::onnx_newer,
        Folder::onnx_contrib,
        Folder::onnx_learn,
    ];
    let made = made.map(|folder| folder(name).unwrap());
    let suites = folders(made[0].path()).into_iter();
    let suites = suites.chain(made[1..].iter().map(|folder| folder.path().into()));
    let cases = suites.flat_map(|suite| folders(&suite)).collect();
    (made, cases)
}

/// One input has another number of dims than a model of one operator takes. `KILN_FUZZ_SEEDS` is how many.
#[test]
fn inputs_of_other_ranks_are_no_panic() {
    Device::Cpu.set_memory_limit(Some(2 << 30));
    let (_folders, cases) = all_cases("ranks");
    let mut panics = Vec::new();
    for seed in seeds(1000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let case = &cases[rng.usize(..cases.len())];
        let bytes = std::fs::read(case.join("model.onnx")).unwrap();
        // `ModelProto.graph.input.type`.
        let untyped = without(&bytes, &[7, 11, 2]);
        let (Ok(typed), Ok(untyped)) = (Model::from_bytes(bytes), Model::from_bytes(untyped))
        else {
            continue;
        };
        let (changed, rank) = (rng.usize(..typed.inputs().len().max(1)), rng.usize(..6));
        let shape = |i: usize, mut shape: Vec<i64>| {
            if i == changed {
                shape.resize(rank, 2);
            }
            shape
        };
        let inputs = zeros(&typed, shape);
        let run = AssertUnwindSafe(|| untyped.run(inputs));
        if catch_unwind(run).is_err() {
            panics.push((seed, case.file_name(), changed, rank));
        }
    }
    assert!(panics.is_empty(), "{panics:#?}");
}

/// A message without the fields at a path of field numbers.
fn without(mut message: &[u8], path: &[u64]) -> Vec<u8> {
    let number = |from: &mut &[u8]| {
        let mut n = 0;
        for shift in (0..).step_by(7) {
            let byte = from.split_off_first().unwrap();
            n |= u64::from(byte & 127) << shift;
            if byte < &128 {
                return n;
            }
        }
        n
    };
    let mut rest = Vec::new();
    while !message.is_empty() {
        let field = message;
        let key = number(&mut message);
        let len = match key & 7 {
            0 => {
                number(&mut message);
                0
            }
            1 => 8,
            5 => 4,
            _ => number(&mut message) as usize,
        };
        let body = message.split_off(..len).unwrap();
        match path {
            [last] if key >> 3 == *last => {}
            [first, inner @ ..] if key >> 3 == *first => {
                rest.extend(part(*first, without(body, inner)))
            }
            _ => rest.extend(&field[..field.len() - message.len()]),
        }
    }
    rest
}

/// A file with large weights, which are read into place, gives what its bytes give, whole or damaged.
#[test]
fn files_give_what_their_bytes_give() -> Result<()> {
    let layer = Linear::new(300, 200)?;
    layer.named_parameters();
    let f = compile(Spec::new(DType::F32, ("n", 300)), |x| layer.call(x))?;
    let path = std::env::temp_dir().join(format!("kiln-onnx-weights-{}.onnx", std::process::id()));
    export(&f, &path, Export::new())?;
    let whole = std::fs::read(&path).unwrap();
    let weights = |model: Result<Model>| {
        let weights = model?.named_parameters().into_iter();
        let bytes = weights.map(|(name, w)| Ok((name, w.shape()?, w.get().to_bytes()?)));
        bytes.collect::<Result<Vec<_>>>()
    };
    let mut read = 0;
    for seed in 0..400 {
        let mut bytes = whole.clone();
        let mut rng = fastrand::Rng::with_seed(seed);
        if seed > 0 {
            // In front of the weights or behind them, where the structure of the file is.
            let at = rng.usize(..1000);
            let at = if at < 500 {
                at
            } else {
                bytes.len() - (at - 499)
            };
            match rng.bool() {
                true => bytes[at] ^= 1 << rng.u8(..8),
                false => bytes.truncate(at.max(1)),
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        match (weights(load(&path)), weights(Model::from_bytes(bytes))) {
            (Ok(a), Ok(b)) => {
                assert!(a == b, "seed {seed}");
                read += 1;
            }
            (Err(a), Err(b)) => assert!(a.message().ends_with(b.message()), "{a}, {b}"),
            (a, b) => panic!("seed {seed}: {:?}, {:?}", a.err(), b.err()),
        }
    }
    assert!((20..380).contains(&read), "{read} were read");
    // A terabyte of zeros, which takes no room.
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let e = load(&path).err().expect("it is not a model");
    assert!(e.message().contains("the model"), "{e}");
    std::fs::remove_file(path).unwrap();
    Ok(())
}

/// The largest memory of the process so far, on Linux.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// Changes some bits, bytes or the length.
fn damaged(mut bytes: Vec<u8>, rng: &mut fastrand::Rng) -> Vec<u8> {
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..bytes.len());
        match rng.u8(..4) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes.truncate(at.max(1)),
            _ => {
                bytes.remove(at);
                bytes.push(0);
            }
        }
    }
    bytes
}

/// Runs a model on zeros. True if it could be read.
fn run(bytes: Vec<u8>) -> bool {
    let Ok(model) = Model::from_bytes(bytes) else {
        return false;
    };
    let _ = model.run(zeros(&model, |_, shape| shape));
    true
}

/// Inputs of a model, of the shapes that `shape` makes of the model's.
fn zeros(model: &Model, shape: impl Fn(usize, Vec<i64>) -> Vec<i64>) -> Vec<(String, Data)> {
    let inputs = model.inputs().iter().enumerate().map(|(i, port)| {
        let size = |d: &DimSpec| match d {
            DimSpec::Known(n) => (*n).min(8),
            DimSpec::Symbol(_) => 2,
        };
        let dims = port.dims.clone().unwrap_or_default();
        let shape = shape(i, dims.iter().map(size).collect());
        let dtype = port.dtype.unwrap_or(DType::F32);
        let data: Data = match port.kind {
            Kind::Text => {
                let shape: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
                let count = shape.iter().product();
                Text::new(vec!["a b"; count], &shape).unwrap().into()
            }
            Kind::Map => Data::Maps(Maps {
                keys: Keys::Integers([7, 2].into()),
                values: Tensor::zeros([1, 2], dtype),
            }),
            _ => Tensor::zeros(shape, dtype).into(),
        };
        (port.name.clone(), data)
    });
    inputs.collect()
}
