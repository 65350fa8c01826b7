//! The library as C programs use it.

mod calls;
mod dlpack;
mod header;
mod programs;

use kiln_package::{Buffer, Contents, NewEntry, NewProgram};
use kiln_plan::{Entry, State};
use std::collections::BTreeMap;

/// Pseudo-random numbers: element i of list k.
fn numbers(k: usize, count: usize) -> Vec<f32> {
    let number = |i| ((i * 37 + k * 11) % 101) as f32 / 101.0;
    (0..count).map(number).collect()
}

/// A package of the network of the runtime's tests, from images `[batch, 1, 6, 6]` to probabilities `[batch, 5]`.
fn package() -> Vec<u8> {
    let bytes = include_bytes!("../../../runtime/tests/fixtures/small_cnn.entry");
    let mut program = Entry::from_bytes(bytes).unwrap();
    program.signature.arguments[0].name = "images".into();
    program.signature.results[0].name = "chances".into();
    let value = |s: &State| {
        let at = s.input.unwrap() as usize;
        let shape = program.plan.inputs[at].shape.iter();
        let shape: Vec<i64> = shape.map(|d| d.as_const().unwrap()).collect();
        let count = shape.iter().product::<i64>() as usize;
        let value = Buffer::from_slice(&numbers(at, count), &shape).unwrap();
        (s.name.clone(), value)
    };
    let tensors: Vec<(String, Buffer)> = program.signature.states.iter().map(value).collect();
    let names = tensors.iter().map(|(name, _)| (name.clone(), Vec::new()));
    let contents = Contents {
        written_by: "a test".into(),
        state: names.collect(),
        tensors,
        entries: vec![NewEntry {
            name: "forward".into(),
            graph: String::new(),
            programs: vec![NewProgram {
                machine: None,
                sizes: BTreeMap::new(),
                program,
            }],
        }],
        assets: vec![("classes.txt".into(), b"a\nb\n".to_vec())],
        ..Contents::default()
    };
    contents.to_bytes().unwrap()
}
