//! Whole plans: symbols, donation, prepared results, memory, errors.

use super::build::*;
use kiln_base::prim::Binary;
use kiln_base::{DType, Dim};
use kiln_plan::tile::TileProgram;
use kiln_plan::*;
use kiln_runtime::{Buffer as Tensor, Error, Executable, Features};

/// `out = a op b` over `n` elements; `n` may be symbolic.
pub fn binary(op: Binary, dtype: DType, n: &Dim) -> TileProgram {
    let mut p = Program::lanes(&[1]);
    let (a, b) = (p.input(dtype), p.input(dtype));
    let c = p.binary(op, a, b);
    p.output(dtype, c);
    p.0.axes = vec![n.clone()];
    p.0
}

fn tensor(x: &[f32]) -> Tensor {
    Tensor::from_slice(x, &[x.len() as i64]).unwrap()
}

fn input(plan: &mut Plan, dtype: DType, n: &Dim, role: Role) -> BufferId {
    plan.buffers.push(Buffer {
        dtype,
        len: n.clone(),
        allocation: Allocation::Input,
    });
    let buffer = BufferId(plan.buffers.len() as u32 - 1);
    plan.inputs.push(Input {
        dtype,
        shape: vec![n.clone()],
        role,
        buffer,
    });
    buffer
}

fn buffer_at(plan: &mut Plan, dtype: DType, n: &Dim, allocation: Allocation) -> BufferId {
    plan.buffers.push(Buffer {
        dtype,
        len: n.clone(),
        allocation,
    });
    BufferId(plan.buffers.len() as u32 - 1)
}

fn output(plan: &mut Plan, buffer: BufferId, donor: Option<u32>) {
    let b = &plan.buffers[buffer.0 as usize];
    plan.outputs.push(Output {
        dtype: b.dtype,
        shape: vec![b.len.clone()],
        buffer,
        donor,
    });
}

fn step(kernel: u32, args: &[BufferId]) -> Step {
    Step {
        kernel,
        args: args.to_vec(),
        sites: vec![],
        concurrent: false,
        guard: None,
    }
}

/// Inputs x (data), w (parameter), state (data). Prepared: w2 = w + w. Run: t = x · w2, u = t + t in
/// place of t, y = u + constant; then, after commit, state' = state + t into the state's memory.
pub fn model(n: &Dim, constants: bool) -> Plan {
    let f = DType::F32;
    let mut p = empty();
    if n.as_const().is_none() {
        p.symbols.push(Symbol {
            name: "n".into(),
            min: 2,
            input: 0,
            axis: 0,
        });
    }
    let x = input(&mut p, f, n, Role::Data);
    let w = input(&mut p, f, n, Role::Parameter);
    let state = input(&mut p, f, n, Role::Data);
    let w2 = buffer_at(&mut p, f, n, Allocation::Prepared);
    let t = buffer_at(&mut p, f, n, Allocation::Temporary);
    let u = buffer_at(&mut p, f, n, Allocation::InPlace(t));
    let y = buffer_at(&mut p, f, n, Allocation::Output);
    let state2 = buffer_at(&mut p, f, n, Allocation::Output);
    output(&mut p, y, None);
    output(&mut p, state2, Some(2));
    p.kernels
        .push(Kernel::Tile(binary(Binary::Add, f, n)).into());
    p.kernels
        .push(Kernel::Tile(binary(Binary::Mul, f, n)).into());
    p.prepare.push(step(0, &[w, w, w2]));
    p.run.push(step(1, &[x, w2, t]));
    p.run.push(step(0, &[t, t, u]));
    let c = if constants {
        let c = buffer_at(&mut p, f, &4i64.into(), Allocation::Constant);
        let bytes = [1f32, 2.0, 3.0, 4.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        p.constants.push(Constant {
            dtype: f,
            bytes,
            buffer: c,
        });
        c
    } else {
        x
    };
    p.run.push(step(0, &[u, c, y]));
    p.commit = 3;
    p.run.push(step(0, &[state, u, state2]));
    p
}

fn inputs() -> Vec<Tensor> {
    vec![
        tensor(&[1.0, 2.0, 3.0, 4.0]),
        tensor(&[1.0, 1.0, 2.0, 0.5]),
        tensor(&[10.0; 4]),
    ]
}

const Y: [f32; 4] = [5.0, 10.0, 27.0, 12.0];
const STATE: [f32; 4] = [14.0, 18.0, 34.0, 18.0];

#[test]
fn a_plan_survives_its_bytes_and_runs_everywhere() {
    let plan = Plan::from_bytes(&model(&4i64.into(), true).to_bytes()).unwrap();
    for result in run(&plan, &inputs()) {
        let out = result.unwrap();
        assert_eq!(out[0].to_vec::<f32>().unwrap(), Y);
        assert_eq!(out[1].to_vec::<f32>().unwrap(), STATE);
        assert_eq!(out[0].shape(), [4]);
    }
}

#[test]
fn donated_memory_is_taken_only_when_it_is_free() {
    let exe = Executable::new(model(&4i64.into(), true)).unwrap();
    let mut given = inputs();
    let (address, id) = (given[2].bytes().unwrap().as_ptr(), given[2].storage().id());
    let out = exe.run(&mut given, &[false, false, true]).unwrap();
    assert_eq!(out[1].bytes().unwrap().as_ptr(), address);
    assert_ne!(out[1].storage().id(), id);
    assert_eq!(out[1].to_vec::<f32>().unwrap(), STATE);
    assert!(given[2].is_empty());

    for (held, donate) in [(true, true), (false, false)] {
        let mut given = inputs();
        let snapshot = held.then(|| given[2].clone());
        let out = exe.run(&mut given, &[false, false, donate]).unwrap();
        assert_eq!(given[2].to_vec::<f32>().unwrap(), [10.0; 4]);
        assert_eq!(out[1].to_vec::<f32>().unwrap(), STATE);
        drop(snapshot);
    }
}

#[test]
fn a_data_error_leaves_donated_memory_alone() {
    let n: Dim = 4i64.into();
    let mut p = empty();
    let a = input(&mut p, DType::I64, &n, Role::Data);
    let b = input(&mut p, DType::I64, &n, Role::Data);
    let q = buffer_at(&mut p, DType::I64, &n, Allocation::Temporary);
    let out = buffer_at(&mut p, DType::I64, &n, Allocation::Output);
    output(&mut p, out, Some(0));
    p.kernels
        .push(Kernel::Tile(binary(Binary::Div, DType::I64, &n)).into());
    p.kernels
        .push(Kernel::Tile(binary(Binary::Add, DType::I64, &n)).into());
    p.sites.push(Site {
        op: "div".into(),
        kind: SiteKind::DivisionByZero,
        node: 5,
    });
    p.run.push(Step {
        kernel: 0,
        args: vec![a, b, q],
        sites: vec![0],
        concurrent: false,
        guard: None,
    });
    p.run.push(step(1, &[a, q, out]));
    p.commit = 1;
    let exe = Executable::new(p).unwrap();
    let int = |x: &[i64]| Tensor::from_slice(x, &[4]).unwrap();
    let mut given = [int(&[8, 9, 10, 11]), int(&[1, 2, 0, 0])];
    let error = exe.run(&mut given, &[true]).unwrap_err();
    assert_eq!(error.to_string(), "div: integer division of 10 by zero");
    assert_eq!(given[0].to_vec::<i64>().unwrap(), [8, 9, 10, 11]);
    given[1] = int(&[1, 2, 5, 11]);
    let out = exe.run(&mut given, &[true]).unwrap();
    assert_eq!(out[0].to_vec::<i64>().unwrap(), [16, 13, 12, 12]);
}

#[test]
fn prepared_results_follow_the_identity_of_the_parameters() {
    let exe = Executable::new(model(&4i64.into(), true)).unwrap();
    let mut given = inputs();
    exe.run(&mut given, &[]).unwrap();
    given[0] = tensor(&[0.0; 4]);
    exe.run(&mut given, &[]).unwrap();
    assert_eq!((exe.stats().prepares, exe.stats().runs), (1, 2));
    assert_eq!(exe.stats().kernels, 1 + 2 * 4);
    let old = std::mem::replace(&mut given[1], tensor(&[2.0; 4]));
    exe.run(&mut given, &[]).unwrap();
    assert_eq!(exe.stats().prepares, 2);
    given[1] = old;
    exe.run(&mut given, &[]).unwrap();
    assert_eq!(exe.stats().prepares, 2);
    exe.clear();
    exe.run(&mut given, &[]).unwrap();
    assert_eq!(exe.stats().prepares, 3);
    // Results from parameters that no longer exist are not kept.
    for value in 0..5 {
        given[1] = tensor(&[value as f32; 4]);
        exe.run(&mut given, &[]).unwrap();
        assert_eq!(exe.stats().prepared, 1);
    }
}

#[test]
fn constraints_of_a_plan_on_symbols_are_checked() {
    let n = Plan::symbol(0);
    let mut plan = model(&n, false);
    plan.needs.push(Need {
        size: &n.div_floor(2) - &Dim::Const(3),
        op: "conv".into(),
        node: 7,
    });
    let bytes = plan.to_bytes();
    assert_eq!(Plan::from_bytes(&bytes).unwrap(), plan);
    let exe = Executable::new(plan).unwrap();
    for (len, legal) in [(6, true), (5, false), (7, true), (2, false), (5, false)] {
        let x = vec![1.0; len];
        let mut given = vec![tensor(&x), tensor(&x), tensor(&x)];
        match exe.run(&mut given, &[]) {
            Ok(out) => assert!(legal && out[0].shape() == [len as i64]),
            Err(e) => {
                assert!(!legal && matches!(e, Error::Size { node: 7, .. }), "{e}");
                let value = len as i64 / 2 - 3;
                let text =
                    format!("conv needs n//2-3 to be at least 0, and it is {value} for n = {len}");
                assert_eq!(e.to_string(), text);
            }
        }
    }
    assert_eq!(exe.stats().bindings, 2);
    // A constraint on a symbol that the plan does not have has no value.
    let mut plan = model(&n, false);
    plan.needs.push(Need {
        size: Plan::symbol(1).div_floor(2),
        op: "conv".into(),
        node: 7,
    });
    let exe = Executable::new(plan).unwrap();
    let mut given = vec![tensor(&[1.0; 4]), tensor(&[1.0; 4]), tensor(&[1.0; 4])];
    assert!(matches!(exe.run(&mut given, &[]), Err(Error::Plan(_))));
}

#[test]
fn symbols_take_their_values_from_the_inputs() {
    let n = Plan::symbol(0);
    let exe = Executable::new(model(&n, false)).unwrap();
    for len in [2usize, 5, 700, 5, 2] {
        let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let ones = vec![1.0; len];
        let mut given = vec![tensor(&x), tensor(&ones), tensor(&ones)];
        let out = exe.run(&mut given, &[]).unwrap();
        let want: Vec<f32> = x.iter().map(|x| 5.0 * x).collect();
        assert_eq!(out[0].to_vec::<f32>().unwrap(), want);
        assert_eq!(out[0].shape(), [len as i64]);
    }
    assert_eq!(exe.stats().bindings, 3);
    let error = |given: &mut [Tensor]| exe.run(given, &[]).unwrap_err();
    assert!(matches!(
        error(&mut [tensor(&[1.0]), tensor(&[1.0]), tensor(&[1.0])]),
        Error::Symbol {
            input: 0,
            value: 1,
            min: 2,
            ..
        }
    ));
    let e = error(&mut [tensor(&[1.0; 4]), tensor(&[1.0; 3]), tensor(&[1.0; 4])]);
    assert_eq!(e.to_string(), "input 1: expected shape [n], found [3]");
    assert!(matches!(
        error(&mut [tensor(&[1.0])]),
        Error::InputCount {
            expected: 3,
            found: 1
        }
    ));
    let ints = Tensor::from_slice(&[1i32; 4], &[4]).unwrap();
    let e = error(&mut [ints, tensor(&[1.0; 4]), tensor(&[1.0; 4])]);
    assert_eq!(e.to_string(), "input 0: expected dtype f32, found i32");
}

#[test]
fn memory_is_known_before_the_run() {
    let exe = Executable::new(model(&Plan::symbol(0), false)).unwrap();
    let report = exe.memory(&[1000]).unwrap();
    assert_eq!(report.peak, 4032);
    assert_eq!(report.lower_bound, 4032);
    assert_eq!(report.prepared, 4000);
    assert_eq!(report.outputs, 4000);
    assert!(exe.memory(&[]).is_err());
    let too_large = exe.memory(&[i64::MAX / 2]);
    assert!(matches!(too_large, Err(Error::OutOfMemory { .. })));
}

#[test]
fn inputs_constants_and_prepared_results_can_be_outputs() {
    let mut plan = model(&4i64.into(), true);
    for b in [0, 3, 8] {
        output(&mut plan, BufferId(b), None);
    }
    for result in run(&plan, &inputs()) {
        let out = result.unwrap();
        assert_eq!(out[2].to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(out[3].to_vec::<f32>().unwrap(), [2.0, 2.0, 4.0, 1.0]);
        assert_eq!(out[4].to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn unsupported_levels_are_refused_by_name() {
    for level in Features::LEVELS.into_iter().filter(|l| !l.is_supported()) {
        let e = Features::force(Some(level)).unwrap_err();
        assert!(e.to_string().contains("does not have it"), "{e}");
    }
    assert!(Features::BASELINE.is_supported());
}
