//! A package of each format, as it was written at the time: `crates/export/tests/export/stored.rs` makes them.

use kiln_package::{Buffer, Error, Package, RNG_STATE};

fn stored() -> [Package; 3] {
    let of: [&[u8]; 3] = [
        include_bytes!("../fixtures/format1.kiln"),
        include_bytes!("../fixtures/format2.kiln"),
        include_bytes!("../fixtures/format3.kiln"),
    ];
    of.map(|bytes| Package::from_bytes(bytes).unwrap())
}

/// The input that the stored results were computed from.
fn rows(n: usize) -> Buffer {
    let values: Vec<f32> = (0..3 * n).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    Buffer::from_slice(&values, &[n as i64, 3]).unwrap()
}

#[test]
fn all_but_the_programs_of_every_format_can_be_read() {
    stored().iter().for_each(read);
}

fn read(package: &Package) {
    assert_eq!(
        package.entries().collect::<Vec<_>>(),
        ["forward", "train_step"]
    );
    assert_eq!(package.metadata()["task"], "a test");
    assert_eq!(package.asset("classes.txt").unwrap(), b"no\nyes\n");
    assert_eq!(
        package.interface("forward").unwrap().outputs[0].to_string(),
        "f32[batch, 2]"
    );
    assert!(package.interface("train_step").unwrap().random);
    assert!(package.graph("train_step").unwrap().contains("matmul"));
    let weight = package.get("0.weight").unwrap();
    assert_eq!(weight.shape(), [5, 3]);
    assert!(
        weight
            .to_vec::<f32>()
            .unwrap()
            .iter()
            .all(|x| *x != 0.0 && x.abs() < 1.0)
    );
    assert_eq!(package.number("optimizer.numbers", "lr").unwrap(), 1e-3);
    assert_eq!(package.get(RNG_STATE).unwrap().shape(), [2]);
}

#[test]
fn programs_of_every_format_run_or_say_that_their_plans_are_of_another_format() {
    stored().iter().for_each(ran);
}

fn ran(package: &Package) {
    let forward = package.entry("forward");
    if package.plan_format() != kiln_plan::FORMAT {
        let found = package.plan_format();
        assert!(matches!(forward, Err(Error::PlanFormat { found: f, .. }) if f == found));
        return;
    }
    let wanted = package.asset("wanted.f32").unwrap().as_chunks::<4>().0;
    let found = forward.unwrap().run(rows(4)).unwrap()[0]
        .to_vec::<f32>()
        .unwrap();
    assert_eq!(found.len(), wanted.len());
    for (a, b) in found.iter().zip(wanted) {
        let b = f32::from_le_bytes(*b);
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    let labels = Buffer::from_slice(&[0i64, 1, 1, 0], &[4]).unwrap();
    let step = package.entry("train_step").unwrap();
    let losses: Vec<f32> = (0..30)
        .map(|_| {
            step.run([rows(4), labels.clone()]).unwrap()[0]
                .to_vec::<f32>()
                .unwrap()[0]
        })
        .collect();
    assert!(
        losses.iter().all(|l| l.is_finite() && *l < 5.0),
        "{losses:?}"
    );
}
