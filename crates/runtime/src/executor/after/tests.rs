use super::super::Executable;
use super::*;
use crate::buffer::Buffer;
use kiln_base::{DType, Dim};
use kiln_cuda::{self as cuda, Device, Nvrtc};
use kiln_kernel::error::Result;
use kiln_kernel::lock::lock;
use kiln_plan::cuda::{Blocks, CudaKernel, Pointer, Text};
use kiln_plan::{Allocation, Input, Kernel, Output, Plan, Role};
use std::sync::Arc;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }

    /// Steps that touch ranges of an arena, buffers, and the error record.
    fn steps(&mut self, n: usize) -> Vec<Touches> {
        let step = |_| {
            let touch = |_| {
                let start = self.below(40);
                let (space, bytes) = match self.below(6) {
                    0 => (Space::Errors, 0..1),
                    1 | 2 => (Space::Buffer(self.below(3)), 0..8),
                    _ => (Space::Arena, start..start + self.below(12)),
                };
                let writes = self.below(3) == 0;
                Touch {
                    space,
                    bytes,
                    writes,
                }
            };
            Touches {
                touches: (0..3).map(touch).collect(),
                concurrent: false,
            }
        };
        (0..n).map(step).collect()
    }
}

fn meet(a: &Touch, b: &Touch) -> bool {
    let bytes = a.bytes.start.max(b.bytes.start) < a.bytes.end.min(b.bytes.end);
    a.space == b.space && bytes && (a.writes || b.writes)
}

/// The first pair of steps that touch the same memory and of which neither waits for the other.
fn fault(steps: &[Touches], waits: &[After]) -> Option<(usize, usize)> {
    let mut reached: Vec<Vec<bool>> = Vec::new();
    for (i, after) in waits.iter().enumerate() {
        let mut all = vec![false; i];
        for before in after.iter().map(|s| *s as usize) {
            all[before] = true;
            let theirs = reached[before].iter().enumerate();
            theirs.for_each(|(s, reached)| all[s] |= reached);
        }
        let meets = |s: &Touches| {
            let mut pairs = steps[i]
                .touches
                .iter()
                .flat_map(|a| s.touches.iter().map(move |b| (a, b)));
            pairs.any(|(a, b)| meet(a, b))
        };
        if let Some(s) = (0..i).find(|s| !all[*s] && meets(&steps[*s])) {
            return Some((s, i));
        }
        reached.push(all);
    }
    None
}

fn touches(touches: &[(Space, Range<usize>, bool)], concurrent: bool) -> Touches {
    let touch = |(space, bytes, writes): &(Space, Range<usize>, bool)| Touch {
        space: *space,
        bytes: bytes.clone(),
        writes: *writes,
    };
    Touches {
        touches: touches.iter().map(touch).collect(),
        concurrent,
    }
}

#[test]
fn steps_wait_for_those_they_meet_and_for_no_other() {
    let (arena, input) = (Space::Arena, Space::Buffer(0));
    let steps = [
        touches(&[(input, 0..8, false), (arena, 0..8, true)], false),
        touches(&[(arena, 0..8, false), (arena, 8..16, true)], false),
        touches(&[(arena, 0..8, false), (arena, 16..24, true)], false),
        touches(&[(arena, 8..16, false), (arena, 16..24, true)], false),
        // One write over the rest of earlier ranges, and an empty one.
        touches(&[(arena, 4..12, true), (arena, 20..20, true)], false),
        touches(&[(arena, 24..32, true), (input, 0..8, false)], false),
    ];
    let waits: Vec<Vec<u32>> = find_dependencies(&steps)
        .iter()
        .map(|w| w.to_vec())
        .collect();
    assert_eq!(
        waits,
        [vec![], vec![0], vec![0], vec![1, 2], vec![3], vec![]]
    );
}

#[test]
fn steps_that_start_together_wait_for_none_of_each_other_whatever_they_read() {
    let mut steps = vec![touches(&[(Space::Arena, 0..8, true)], false)];
    for i in 0..3 * READERS {
        let own = Space::Buffer(i);
        steps.push(touches(
            &[(Space::Arena, 0..8, false), (own, 0..8, true)],
            i > 0,
        ));
    }
    steps.push(touches(&[(Space::Arena, 0..8, true)], false));
    let waits = find_dependencies(&steps);
    assert!(waits[1..=3 * READERS].iter().all(|w| w[..] == [0]));
    assert_eq!(waits[3 * READERS + 1].len(), 3 * READERS);
    // Without concurrent steps, each waits for few.
    steps.iter_mut().for_each(|s| s.concurrent = false);
    let waits = find_dependencies(&steps);
    assert!(waits.iter().all(|w| w.len() <= READERS + 1));
    assert_eq!(fault(&steps, &waits), None);
}

#[test]
fn no_two_steps_that_meet_are_without_order_and_a_dropped_wait_is_found() {
    let mut random = Random(7);
    let mut waits_dropped = 0;
    for case in 0..200 {
        let n = 1 + random.below(40);
        let steps = random.steps(n);
        let mut waits = find_dependencies(&steps);
        assert_eq!(fault(&steps, &waits), None, "case {case}");
        for i in 0..n {
            for at in 0..waits[i].len() {
                let wait = waits[i].remove(at);
                assert!(
                    fault(&steps, &waits).is_some(),
                    "case {case}: {i} and {wait}"
                );
                waits[i].insert(at, wait);
                waits_dropped += 1;
            }
        }
    }
    assert!(waits_dropped > 1000);
}

/// From x: `a = x + x`, the result `a + x`, `b = a + a`, `c = b + b` in the memory of a, the result `c + x`.
fn sums() -> Plan {
    let (dtype, n) = (DType::F32, Dim::Const(4));
    let text = Text {
        body: "    arg2[threadIdx.x] = arg0[threadIdx.x] + arg1[threadIdx.x];\n".into(),
        ..Text::default()
    };
    let pointer = |written| Pointer {
        dtype,
        written,
        alone: false,
    };
    let kernel = CudaKernel {
        name: "add".into(),
        entry: "add".into(),
        text,
        args: [false, false, true].map(pointer).to_vec(),
        cluster: 1,
        resident: 1,
        scalars: vec![],
        grid: [Blocks::one(), Blocks::one(), Blocks::one()],
        block: [4, 1, 1],
        shared: 0,
        maps: vec![],
        sites: 0,
        footprints: vec![],
    };
    let [x, first, last, a, b, c] = [0, 1, 2, 3, 4, 5].map(BufferId);
    let (temporary, shape) = (Allocation::Temporary, vec![n.clone()]);
    let allocations = [
        Allocation::Input,
        Allocation::Output,
        Allocation::Output,
        temporary,
        temporary,
        temporary,
    ];
    let output = |buffer| Output {
        dtype,
        shape: shape.clone(),
        buffer,
        donor: None,
    };
    let step = |args: [BufferId; 3]| Step {
        kernel: 0,
        args: args.to_vec(),
        sites: vec![],
        concurrent: false,
        guard: None,
    };
    Plan {
        inputs: vec![Input {
            dtype,
            shape: shape.clone(),
            role: Role::Data,
            buffer: x,
        }],
        outputs: vec![output(first), output(last)],
        buffers: allocations
            .map(|allocation| kiln_plan::Buffer {
                dtype,
                len: n.clone(),
                allocation,
            })
            .to_vec(),
        kernels: vec![Kernel::Cuda(kernel).into()],
        run: [[x, x, a], [a, x, first], [a, a, b], [b, b, c], [c, x, last]]
            .map(step)
            .to_vec(),
        commit: 5,
        ..Plan::default()
    }
}

/// The results of the second run, a graph replay, in which one step does not wait for another.
fn without(dropped: Option<(usize, u32)>, device: &Arc<Device>) -> Result<[Vec<f32>; 2]> {
    let exe = Executable::on_gpu(sums(), device)?;
    if let Some((step, wait)) = dropped {
        let mut bindings = lock(&exe.bindings);
        let bound = Arc::get_mut(&mut bindings[0]).expect("nothing runs");
        bound.run[step].after.retain(|s| *s != wait);
    }
    let x = Buffer::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4])?.to_gpu(device)?;
    exe.run_shared(std::slice::from_ref(&x))?;
    let out = exe.run_shared(&[x])?;
    Ok([out[0].to_vec()?, out[1].to_vec()?])
}

#[test]
fn a_dropped_wait_is_found_on_the_emulated_gpu() {
    cuda::set_driver(kiln_fake_cuda::library());
    let Some(device) = Nvrtc::get().ok().and_then(|_| Device::get(0).ok()) else {
        return eprintln!("skipped: no NVRTC");
    };
    let want = [vec![3.0, 6.0, 9.0, 12.0], vec![9.0, 18.0, 27.0, 36.0]];
    assert_eq!(without(None, &device).unwrap(), want);
    let exe = Executable::on_gpu(sums(), &device).unwrap();
    let steps = lock(&exe.bindings)[0].run.clone();
    let waits: Vec<&[u32]> = steps.iter().map(|s| &s.after[..]).collect();
    assert_eq!(waits, [&[][..], &[0], &[0], &[1, 2], &[3]]);
    for dropped in [(1, 0), (2, 0), (3, 1), (3, 2), (4, 3)] {
        without(Some(dropped), &device).unwrap_err();
        // The fault depends on the order that was drawn.
        let fault = kiln_fake_cuda::last_fault().unwrap();
        let found = ["are unordered", "Uninitialised"];
        assert!(
            found.iter().any(|f| fault.contains(f)),
            "{dropped:?}: {fault}"
        );
        kiln_fake_cuda::reset();
    }
}
