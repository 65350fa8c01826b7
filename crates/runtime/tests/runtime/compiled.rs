//! An entry made by the compiler, read and run with nothing but the runtime linked.

use kiln_base::DType;
use kiln_plan::{Entry, Named, Role, State};
use kiln_runtime::{Buffer, Executable};

/// The input that the fixture was made with: element i of input k.
fn input(k: usize, shape: &[i64]) -> Buffer {
    let count: i64 = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 37 + k as i64 * 11) % 101) as f32 / 101.0)
        .collect();
    Buffer::from_slice(&values, shape).expect("the shape fits")
}

#[test]
fn a_compiled_network_runs_without_the_compiler() {
    let entry = Entry::from_bytes(include_bytes!("../fixtures/small_cnn.entry"));
    let Entry { signature, plan } = entry.expect("an entry");
    let whole = |at| Named {
        name: String::new(),
        at,
    };
    assert_eq!(signature.arguments, [whole(0)]);
    assert_eq!(signature.results, [whole(0)]);
    let read = |name: &str, input| State {
        name: name.into(),
        input: Some(input),
        output: None,
    };
    let states = ["conv.weight", "state.1", "state.2", "fc.weight"];
    let states: Vec<State> = states
        .into_iter()
        .zip(1..)
        .map(|(n, i)| read(n, i))
        .collect();
    assert_eq!(signature.states, states);
    assert_eq!((signature.captured, signature.draws), (vec![], vec![]));
    let image = &plan.inputs[0];
    assert_eq!((image.dtype, image.role), (DType::F32, Role::Data));
    assert_eq!(plan.symbols[0].name, "batch");
    let executable = Executable::new(plan).expect("a sound plan");
    let shapes = executable.plan().inputs.iter();
    let shapes: Vec<Vec<i64>> = shapes
        .map(|i| i.shape.iter().map(|d| d.eval(&[3])).collect())
        .collect();
    assert_eq!(shapes[1..], [&[4, 1, 3, 3][..], &[4], &[4], &[36, 5]]);
    let inputs: Vec<Buffer> = shapes
        .iter()
        .enumerate()
        .map(|(k, s)| input(k, s))
        .collect();
    let outputs = executable.run_shared(&inputs).expect("a run");
    let got = outputs[0].to_vec::<f32>().expect("f32");
    let wanted = include_bytes!("../fixtures/small_cnn.f32")
        .as_chunks::<4>()
        .0;
    assert_eq!(outputs[0].shape(), [3, 5]);
    assert_eq!(got.len(), wanted.len());
    for (a, b) in got.iter().zip(wanted) {
        assert!((a - f32::from_le_bytes(*b)).abs() < 1e-6, "{a}");
    }
}
