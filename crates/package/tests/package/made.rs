//! Packages that are made here, from a program of the runtime's tests.

use kiln_package::{Buffer, Contents, Error, NewEntry, NewProgram, Options, Package};
use kiln_plan::Entry;
use std::collections::BTreeMap;

/// The input that the fixture was made with: element i of input k.
pub fn input(k: usize, shape: &[i64]) -> Buffer {
    let count: i64 = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 37 + k as i64 * 11) % 101) as f32 / 101.0)
        .collect();
    Buffer::from_slice(&values, shape).unwrap()
}

/// A package of a convolution, batch norm, pooling and a linear layer.
pub fn contents() -> Contents {
    let bytes = include_bytes!("../../../runtime/tests/fixtures/small_cnn.entry");
    let mut program = Entry::from_bytes(bytes).unwrap();
    program.signature.arguments[0].name = "images".into();
    program.signature.results[0].name = "chances".into();
    let states = program.signature.states.iter();
    let value = |s: &kiln_plan::State| {
        let at = s.input.unwrap() as usize;
        let shape = program.plan.inputs[at].shape.iter();
        let shape: Vec<i64> = shape.map(|d| d.as_const().unwrap()).collect();
        (s.name.clone(), input(at, &shape))
    };
    let tensors: Vec<(String, Buffer)> = states.map(value).collect();
    Contents {
        written_by: "a test".into(),
        metadata: BTreeMap::from([("a".into(), "b".into())]),
        state: tensors
            .iter()
            .map(|(n, _)| (n.clone(), Vec::new()))
            .collect(),
        tensors,
        entries: vec![NewEntry {
            name: "forward".into(),
            graph: "a graph".into(),
            programs: vec![NewProgram {
                machine: None,
                sizes: BTreeMap::new(),
                program,
            }],
        }],
        assets: vec![("labels/classes.txt".into(), b"one\ntwo\n".to_vec())],
        packed: Vec::new(),
        cuda: Vec::new(),
    }
}

#[test]
fn a_package_runs_without_the_compiler() {
    let bytes = contents().to_bytes().unwrap();
    assert!(
        bytes == contents().to_bytes().unwrap(),
        "the same parts are the same bytes"
    );
    let package = Package::from_bytes(&bytes).unwrap();
    assert_eq!(package.graph("forward").unwrap(), "a graph");
    assert_eq!(package.asset("labels/classes.txt").unwrap(), b"one\ntwo\n");
    let forward = package.entry("forward").unwrap();
    let out = forward.run([("images", input(0, &[3, 1, 6, 6]))]).unwrap();
    let wanted = include_bytes!("../../../runtime/tests/fixtures/small_cnn.f32")
        .as_chunks::<4>()
        .0;
    let found = out.get("chances").unwrap().to_vec::<f32>().unwrap();
    assert_eq!(found.len(), wanted.len());
    for (a, b) in found.iter().zip(wanted) {
        assert!((a - f32::from_le_bytes(*b)).abs() < 1e-6);
    }
    let error = forward
        .run(input(0, &[1, 1, 6, 6]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no program for batch = 1"), "{error}");
}

#[test]
fn any_number_of_threads_run_one_entry() {
    let package = Package::from_bytes(&contents().to_bytes().unwrap()).unwrap();
    let alone = package
        .entry("forward")
        .unwrap()
        .run(input(0, &[5, 1, 6, 6]))
        .unwrap();
    let alone = alone[0].to_bytes().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let forward = package.entry("forward").unwrap();
                for _ in 0..20 {
                    let out = forward.run(input(0, &[5, 1, 6, 6])).unwrap();
                    assert_eq!(out[0].to_bytes().unwrap(), alone);
                }
            });
        }
    });
}

#[test]
fn weights_of_another_shape_or_missing_are_refused() {
    let refused = |change: &dyn Fn(&mut Contents), why: &str| {
        let mut contents = contents();
        change(&mut contents);
        let opened = contents.to_bytes().and_then(|b| Package::from_bytes(&b));
        let found = opened.and_then(|p| p.entry("forward").map(drop));
        let found = found.unwrap_err().to_string();
        assert!(found.contains(why), "{found}, not {why}");
    };
    refused(
        &|c| c.tensors[0].1 = input(0, &[4, 1, 3, 2]),
        "does not fit state `conv.weight`",
    );
    refused(
        &|c| drop(c.tensors.remove(0)),
        "state `conv.weight` holds nothing",
    );
    refused(
        &|c| drop(c.state.remove(0)),
        "does not fit state `conv.weight`",
    );
    refused(
        &|c| c.tensors[1].0 = "conv.weight".into(),
        "two tensors are called `conv.weight`",
    );
    refused(
        &|c| c.state[1].0 = "conv.weight".into(),
        "two states are called `conv.weight`",
    );
    refused(
        &|c| {
            c.entries[0].programs[0].program.signature.arguments[0]
                .name
                .clear()
        },
        "one name, or none",
    );
    refused(
        &|c| c.entries[0].programs.clear(),
        "`forward` has no program",
    );
    refused(
        &|c| c.state[0].1 = vec!["lr".into()],
        "other elements than names",
    );
    refused(
        &|c| {
            let sizes = BTreeMap::from([("batch".into(), 1)]);
            let program = c.entries[0].programs[0].program.clone();
            c.entries[0].programs = vec![NewProgram {
                machine: None,
                sizes,
                program,
            }];
        },
        "`forward` has no program",
    );
}

#[test]
fn a_program_for_a_size_must_be_the_general_one_with_it() {
    let mut contents = contents();
    let sizes = BTreeMap::from([("batch".into(), 1)]);
    let program = contents.entries[0].programs[0].program.clone();
    contents.entries[0].programs.push(NewProgram {
        machine: None,
        sizes,
        program,
    });
    let package = Package::from_bytes(&contents.to_bytes().unwrap()).unwrap();
    let forward = package.entry("forward").unwrap();
    forward.run(input(0, &[2, 1, 6, 6])).unwrap();
    let error = forward
        .run(input(0, &[1, 1, 6, 6]))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the program for batch = 1 is another one"),
        "{error}"
    );
}

#[test]
fn files_that_are_no_packages_say_so() {
    let folder = std::env::temp_dir().join(format!("kiln-package-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("file");
    for contents in [
        &b""[..],
        b"PK",
        b"hello, this is not a package at all, but a text",
    ] {
        std::fs::write(&path, contents).unwrap();
        let error = Package::open(&path).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("file: this is not a Kiln package"),
            "{error}"
        );
    }
    assert!(Package::open(&folder).is_err() && Package::open(folder.join("none")).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn other_formats_name_who_wrote_them() {
    let bytes = contents().to_bytes().unwrap();
    let find = |text: &str| {
        let mut windows = bytes.windows(text.len());
        windows.position(|w| w == text.as_bytes()).unwrap()
    };
    for (from, to, wanted) in [
        (
            "\"format\": 3,",
            "\"format\": 4,",
            "is of format 4 and was written by a test",
        ),
        (
            "\"plan_format\": ",
            "\"plan_formas\": ",
            "unknown field `plan_formas`",
        ),
    ] {
        let at = find(from);
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to.as_bytes());
        resum(&mut changed);
        let error = Package::from_bytes(&changed).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}, not {wanted}");
    }
    let at = find("\"plan_format\": ") + 15;
    let mut changed = bytes.clone();
    changed[at..at + 2].copy_from_slice(b"18");
    resum(&mut changed);
    let package = Package::from_bytes(&changed).unwrap();
    assert!(package.get("conv.weight").is_ok() && package.graph("forward").is_ok());
    let error = package.entry("forward").unwrap_err();
    assert!(
        matches!(error, Error::PlanFormat { found: 18, .. }),
        "{error}"
    );
}

/// Rewrites the checksum of the first member, whose size stays.
fn resum(bytes: &mut [u8]) {
    let word = |at: usize, n: usize| {
        bytes[at..at + n]
            .iter()
            .rev()
            .fold(0, |a, b| a << 8 | usize::from(*b))
    };
    let start = 30 + word(26, 2) + word(28, 2);
    let sum = crc32fast::hash(&bytes[start..start + word(18, 4)]).to_le_bytes();
    let directory = word(bytes.len() - 6, 4);
    bytes[14..18].copy_from_slice(&sum);
    bytes[directory + 16..directory + 20].copy_from_slice(&sum);
}

#[test]
fn trusted_files_are_opened_without_reading_them() {
    let mut bytes = contents().to_bytes().unwrap();
    let at = bytes.windows(8).position(|w| w == b"one\ntwo\n").unwrap();
    bytes[at] = b'O';
    let error = Package::from_bytes(&bytes).unwrap_err().to_string();
    assert!(
        error.contains("`assets/labels/classes.txt` has another checksum"),
        "{error}"
    );
    let package = Options::new().trusted(true).open_bytes(&bytes).unwrap();
    assert_eq!(package.asset("labels/classes.txt").unwrap(), b"One\ntwo\n");
}
