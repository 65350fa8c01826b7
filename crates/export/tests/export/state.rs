//! State: read, set, saved, reset, shared by runs.

use crate::support::{batch, buffer, trainee};
use kiln_package::{Buffer, DType, Options, Package, RNG_STATE};

/// All states as bytes.
fn all(package: &Package) -> Vec<Vec<u8>> {
    let states = package.states().iter();
    states
        .map(|s| package.get(&s.name).unwrap().to_bytes().unwrap())
        .collect()
}

/// Runs a training step, and returns the bytes of the loss.
fn train(package: &Package, seed: u64) -> Vec<u8> {
    let (x, y) = batch(seed, 6);
    let step = package.entry("train_step").unwrap();
    step.run([buffer(&x), buffer(&y)]).unwrap()[0]
        .to_bytes()
        .unwrap()
}

#[test]
fn a_saved_package_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (
        folder.path().join("first.kiln"),
        folder.path().join("second.kiln"),
    );
    trainee(1).builder().save(&first).unwrap();
    let package = Package::open(&first).unwrap();
    for seed in 0..3 {
        train(&package, seed);
    }
    package.save(&second).unwrap();
    let later = Package::open(&second).unwrap();
    assert_eq!(all(&package), all(&later));
    assert_eq!(train(&package, 9), train(&later, 9));
    assert_eq!(all(&package), all(&later));
    // The open file is replaced, not overwritten in place.
    package.save(&first).unwrap();
    assert_eq!(train(&package, 10), train(&later, 10));
    assert_ne!(all(&Package::open(&first).unwrap()), all(&package));
    assert!(package.save(folder.path().join("none/there.kiln")).is_err());
}

#[test]
fn state_is_saved_loaded_set_and_reset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let package = trainee(2).package();
    let start = all(&package);
    package.save_state(&path).unwrap();
    let first = train(&package, 1);
    let trained = all(&package);
    assert_ne!(trained, start);
    package.reset().unwrap();
    assert_eq!(all(&package), start);
    assert_eq!(train(&package, 1), first, "the random state is reset too");
    package.load_state(&path).unwrap();
    assert_eq!(all(&package), start);
    let w = Buffer::from_slice(&[1.5f32; 10], &[2, 5]).unwrap();
    package.set("3.weight", w.clone()).unwrap();
    assert_eq!(
        package.get("3.weight").unwrap().to_bytes().unwrap(),
        w.to_bytes().unwrap()
    );
    // Either all values are set or none.
    let wrong = Buffer::zeros(DType::F32, &[3]).unwrap();
    let zeros = Buffer::zeros(DType::F32, &[2, 5]).unwrap();
    let error = package
        .set_all([("3.weight", zeros), ("3.bias", wrong)])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("state `3.bias` is f32[2], not f32[3]"),
        "{error}"
    );
    assert_eq!(
        package.get("3.weight").unwrap().to_bytes().unwrap(),
        w.to_bytes().unwrap()
    );
    let lr = package.number("optimizer.numbers", "lr").unwrap();
    package
        .set_number("optimizer.numbers", "lr", 2.0 * lr)
        .unwrap();
    assert_eq!(package.number("optimizer.numbers", "lr").unwrap(), 2.0 * lr);
    assert!(
        package
            .set_number("optimizer.numbers", "warmth", 1.0)
            .is_err()
    );
    assert!(package.number("3.weight", "lr").is_err() && package.get("4.weight").is_err());
    // A file with fewer tensors, and a file that does not exist.
    std::fs::write(&path, b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let before = all(&package);
    assert!(package.load_state(&path).is_err());
    assert!(package.load_state(folder.path().join("none")).is_err());
    assert_eq!(all(&package), before);
}

#[test]
fn a_failed_run_does_not_change_the_state() {
    let package = trainee(3).package();
    train(&package, 1);
    let before = all(&package);
    let step = package.entry("train_step").unwrap();
    let (x, _) = batch(1, 4);
    let labels = Buffer::from_slice(&[0i64, 1, 2, 0], &[4]).unwrap();
    for _ in 0..2 {
        let error = step.run([buffer(&x), labels.clone()]).unwrap_err();
        assert!(error.to_string().contains("train_step"), "{error}");
        assert_eq!(all(&package), before);
    }
    train(&package, 2);
}

#[test]
fn mapped_weights_are_copied_when_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.kiln");
    trainee(4).builder().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let package = Package::open(&path).unwrap();
    let weight = package.get("0.weight").unwrap();
    let start = weight.to_bytes().unwrap();
    for seed in 0..4 {
        train(&package, seed);
    }
    assert_eq!(
        weight.to_bytes().unwrap(),
        start,
        "a tensor that was read does not change"
    );
    assert_ne!(package.get("0.weight").unwrap().to_bytes().unwrap(), start);
    assert!(
        bytes == std::fs::read(&path).unwrap(),
        "the file does not change"
    );
    let trusted = Options::new().trusted(true).open(&path).unwrap();
    assert_eq!(trusted.get("0.weight").unwrap().to_bytes().unwrap(), start);
    // A tensor outlives the package.
    drop((package, trusted));
    assert_eq!(weight.to_bytes().unwrap(), start);
}

#[test]
fn runs_that_write_wait_for_each_other_and_readers_see_whole_states() {
    let package = trainee(5).package();
    let (x, _) = batch(3, 8);
    // The legal results for readers: one after each number of steps.
    let reader = package.entry("forward").unwrap();
    let mut legal = vec![reader.run(buffer(&x)).unwrap()[0].to_bytes().unwrap()];
    const STEPS: usize = 24;
    for _ in 0..STEPS {
        train(&package, 1);
        legal.push(reader.run(buffer(&x)).unwrap()[0].to_bytes().unwrap());
    }
    let wanted = all(&package);
    package.reset().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..STEPS / 3).for_each(|_| drop(train(&package, 1))));
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..3 * STEPS {
                    let found = reader.run(buffer(&x)).unwrap()[0].to_bytes().unwrap();
                    assert!(
                        legal.contains(&found),
                        "a reader saw states that do not belong together"
                    );
                }
            });
        }
    });
    assert_eq!(all(&package), wanted);
    assert!(package.get(RNG_STATE).unwrap().to_vec::<i64>().unwrap()[1] > 0);
}
