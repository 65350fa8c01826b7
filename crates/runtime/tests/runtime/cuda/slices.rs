//! Loops whose stacked values have slices of any size: kernels get each of them aligned.

use super::build::*;
use kiln_base::{DType, Dim};
use kiln_plan::cuda::ARGUMENT_ALIGN;
use kiln_plan::{Allocation, Kernel, Loop, Plan, Role};
use kiln_runtime::{Buffer, Executable};
use std::sync::Arc;

/// A plan with these inputs, then these outputs as buffers, each with its number of elements.
fn plan(
    kernels: Vec<Arc<Kernel>>,
    run: &[&[u32]],
    [inputs, outputs]: [&[(DType, i64)]; 2],
) -> Plan {
    let (mut buffers, mut ins, mut outs) = (Vec::new(), Vec::new(), Vec::new());
    for (dtype, len) in inputs {
        let len = Dim::Const(*len);
        let id = buffers.len() as u32;
        // The number of a step has no dims.
        let shape = match dtype {
            DType::I64 => &[],
            _ => std::slice::from_ref(&len),
        };
        ins.push(input(*dtype, shape, Role::Data, id));
        buffers.push(buffer(*dtype, &len, Allocation::Input));
    }
    for (dtype, len) in outputs {
        let len = Dim::Const(*len);
        let id = buffers.len() as u32;
        outs.push(output(*dtype, std::slice::from_ref(&len), id, None));
        buffers.push(buffer(*dtype, &len, Allocation::Output));
    }
    let steps = run.iter().enumerate();
    Plan {
        symbols: vec![],
        inputs: ins,
        outputs: outs,
        constants: vec![],
        buffers,
        kernels,
        prepare: vec![],
        run: steps.map(|(i, args)| step(i as u32, args, &[])).collect(),
        commit: run.len() as u32,
        sites: vec![],
        needs: vec![],
    }
}

/// A loop over slices of n bytes. A step carries c, and stacks y = c + x + its number; the next c is 3 y. An argument
/// that is not aligned makes all of a result 255.
fn scan(n: i64, trips: i64, reverse: bool) -> Plan {
    let [byte, number] = [DType::U8, DType::I64];
    let dim = Dim::Const(n);
    let add = format!(
        "auto all = (size_t)x0 | (size_t)x1 | (size_t)x2 | (size_t)x3;\n\
         x3[i] = all % {ARGUMENT_ALIGN} ? 255 : x0[0] + x1[i] + x2[i];"
    );
    let next = format!("x1[i] = ((size_t)x0 | (size_t)x1) % {ARGUMENT_ALIGN} ? 255 : 3 * x0[i];");
    let body = plan(
        vec![
            kernel("add", &add, &[number, byte, byte, byte], &dim, 0),
            kernel("next", &next, &[byte, byte], &dim, 0),
        ],
        &[&[0, 1, 2, 4], &[4, 3]],
        [
            &[(number, 1), (byte, n), (byte, n)],
            &[(byte, n), (byte, n)],
        ],
    );
    let kernel = Kernel::Loop(Loop {
        trips: Dim::Const(trips),
        reverse,
        conditional: false,
        first: vec![0],
        scanned: vec![1],
        alike: vec![],
        last: vec![2],
        stacked: vec![3],
        body: Box::new(body),
    });
    let stacked = (byte, n * trips);
    plan(
        vec![Arc::new(kernel)],
        &[&[0, 1, 2, 3]],
        [&[(byte, n), stacked]; 2],
    )
}

#[test]
fn slices_of_any_size_are_aligned() {
    let Some(device) = device() else { return };
    for n in [1, 3, 8, 16, 20, 37, 300] {
        for (trips, reverse) in [(0, false), (1, false), (2, true), (7, false), (6, true)] {
            let what = format!("{trips} slices of {n} bytes");
            let first: Vec<u8> = (0..n).map(|i| (i * 5) as u8).collect();
            let xs: Vec<u8> = (0..n * trips).map(|i| (i * 37 + i / 11) as u8).collect();
            let (mut c, mut ys) = (first.clone(), vec![0; xs.len()]);
            for t in 0..trips {
                let t = if reverse { trips - 1 - t } else { t };
                for (i, c) in c.iter_mut().enumerate() {
                    let at = (t * n) as usize + i;
                    ys[at] = c.wrapping_add(xs[at]).wrapping_add(t as u8);
                    *c = ys[at].wrapping_mul(3);
                }
            }
            let exe = Executable::on_gpu(scan(n, trips, reverse), &device).unwrap();
            let inputs = [(first, n), (xs, n * trips)].map(|(bytes, len)| {
                let bytes = Buffer::from_slice(&bytes, &[len]).unwrap();
                bytes.to_gpu(&device).unwrap()
            });
            // The second run is a graph.
            for _ in 0..3 {
                let results = exe.run_shared(&inputs).unwrap();
                assert_eq!(results[0].to_vec::<u8>().unwrap(), c, "{what}");
                assert_eq!(results[1].to_vec::<u8>().unwrap(), ys, "{what}");
            }
            // The operand and the result are copied if slices must be padded; without steps, the carried value is.
            let is_padded = trips > 1 && !(n as usize).is_multiple_of(ARGUMENT_ALIGN);
            let launches = 2 * trips + i64::from(trips == 0) + 2 * i64::from(is_padded);
            assert_eq!(exe.stats().kernels, 3 * launches as u64, "{what}");
        }
    }
}
