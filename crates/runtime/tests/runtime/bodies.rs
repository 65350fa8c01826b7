//! Kernels in the bodies of loops and branches.

use super::algorithms;
use super::build::*;
use kiln_base::{DType, Dim};
use kiln_plan::*;
use kiln_runtime::Buffer;

/// The plan with its last input as a constant.
fn with_weights(mut plan: Plan, weights: &Buffer) -> Plan {
    let input = plan.inputs.pop().unwrap();
    plan.buffers[input.buffer.0 as usize].allocation = Allocation::Constant;
    plan.constants.push(Constant {
        dtype: input.dtype,
        bytes: weights.bytes().unwrap().to_vec(),
        buffer: input.buffer,
    });
    plan
}

/// The plan with random numbers as a constant for its last input.
pub fn with_some_weights(plan: Plan, r: &mut Random) -> Plan {
    let input = &plan.inputs[plan.inputs.len() - 1];
    let len = input.shape[0].as_const().unwrap();
    let weights = algorithms::random(input.dtype, len, r);
    with_weights(plan, &weights)
}

/// The same steps in a plan whose first input is the number of a step.
fn step_of(mut body: Plan) -> Plan {
    let number = add_buffer(&mut body, DType::I64, 1, Allocation::Input);
    let number = Input {
        dtype: DType::I64,
        shape: vec![],
        role: Role::Data,
        buffer: number,
    };
    body.inputs.insert(0, number);
    body
}

/// A plan of one kernel that runs a body of one input and one output. Its output has `times` the elements of the
/// body's.
fn around(kernel: impl Fn(Plan) -> Kernel, body: &Plan, condition: bool, times: i64) -> Plan {
    let len = |b: BufferId| body.buffers[b.0 as usize].len.as_const().unwrap();
    let (x, y) = (&body.inputs[0], &body.outputs[0]);
    let mut args = vec![
        (x.dtype, len(x.buffer), false),
        (y.dtype, times * len(y.buffer), true),
    ];
    if condition {
        args.push((DType::Bool, 1, false));
    }
    plan_of(kernel(body.clone()), &args)
}

/// A loop of two steps, each of which returns the body's result.
pub fn repeated(body: &Plan) -> Plan {
    let kernel = |body| {
        Kernel::Loop(Loop {
            trips: Dim::Const(2),
            reverse: false,
            conditional: false,
            first: vec![],
            scanned: vec![],
            alike: vec![0],
            last: vec![],
            stacked: vec![1],
            body: Box::new(step_of(body)),
        })
    };
    around(kernel, body, false, 2)
}

/// A branch whose sides are the same.
pub fn branched(body: &Plan) -> Plan {
    let kernel = |body: Plan| {
        Kernel::If(If {
            condition: 2,
            inputs: vec![0],
            outputs: vec![1],
            branches: Box::new([body.clone(), body]),
        })
    };
    around(kernel, body, true, 1)
}

/// Checks that a kernel of an operand and constant weights gives the same result in bodies as alone, where its
/// weights are packed in *prepare*.
fn same_in_bodies(plan: Plan, r: &mut Random) {
    let [x, weights] = [0, 1].map(|i| {
        let input = &plan.inputs[i];
        let len = input.shape[0].as_const().unwrap();
        algorithms::random(input.dtype, len, r)
    });
    let alone = with_weights(plan, &weights);
    // The level is fixed, since other tests may change the current one.
    let level = levels()[levels().len() - 1];
    let want = executable(&alone, level).unwrap();
    let want = want.run_shared(std::slice::from_ref(&x)).unwrap()[0]
        .bytes()
        .unwrap()
        .to_vec();
    let kernel = &alone.kernels[0];
    let exe = executable(&repeated(&alone), level).unwrap();
    let twice = exe.run_shared(std::slice::from_ref(&x)).unwrap();
    assert_eq!(
        twice[0].bytes().unwrap(),
        [&want[..], &want].concat(),
        "{kernel:?}"
    );
    let exe = executable(&branched(&alone), level).unwrap();
    let yes = Buffer::from_slice(&[true], &[1]).unwrap();
    let once = exe.run_shared(&[x, yes]).unwrap();
    assert_eq!(once[0].bytes().unwrap(), want, "{kernel:?}");
}

#[test]
fn products_by_constants_are_the_same_in_bodies() {
    let mut r = Random(31);
    for dtype in [DType::F32, DType::F64] {
        for [m, k, n] in [[5, 3, 40], [1, 40, 33], [7, 64, 64], [37, 17, 130]] {
            let mut p = MatMul {
                dtypes: [dtype; 2],
                reduce_range: false,
                ..product(m, k, n)
            };
            for algorithm in p.algorithms(&[]) {
                p.algorithm = algorithm.into();
                let args = [
                    (dtype, m * k, false),
                    (dtype, k * n, false),
                    (dtype, m * n, true),
                ];
                same_in_bodies(plan_of(Kernel::MatMul(p.clone()), &args), &mut r);
            }
        }
    }
}

#[test]
fn convolutions_by_constants_are_the_same_in_bodies() {
    let mut r = Random(37);
    for plan in algorithms::convolutions() {
        same_in_bodies(plan, &mut r);
    }
}
