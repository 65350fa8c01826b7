//! Machine code of the kernels that the samples run as: it fits the architectures it is made for, and
//! products of 16-bit floats use tensor cores.

use kiln_goldens::{Case, Folder, ids, record};
use kiln_plan::cuda::{CudaKernel, PRELUDE};
use kiln_plan::{Kernel, Plan};
use kiln_runtime::cuda::{Code, Nvrtc, Resources};
use kiln_tensor::{CompileOptions, Device, compile_with};
use kiln_testkit::sweep::Sweep;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kernels by their entry names.
type Kernels = BTreeMap<String, CudaKernel>;

/// The number of kernels of a translation unit.
const UNIT: usize = 8;
/// One of this number of cases is compiled, unless all are.
const EVERY: usize = 23;

/// The resources of a multiprocessor.
const REGISTERS: u32 = 65536;
const SHARED: u32 = 160 << 10;

/// All kernels with `KILN_FULL_SWEEP=1`, else those of some samples.
#[test]
fn machine_code_fits() {
    let Some(device) = crate::gpu::device() else {
        return;
    };
    let kernels: Vec<CudaKernel> = kernels(device).into_values().collect();
    assert!(!kernels.is_empty());
    let units: Vec<&[CudaKernel]> = kernels.chunks(UNIT).collect();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let most = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    wrong.lock().unwrap().extend(check(unit, &most));
                }
            });
        }
    });
    for (what, (number, entry)) in most.into_inner().unwrap() {
        println!("most {what}: {number} in {entry}");
    }
    println!("{} kernels", kernels.len());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The kernels of some cases, or of those of the sweep.
fn kernels(device: Device) -> Kernels {
    let folder = Folder::opinfo("machine-code").unwrap();
    let root = folder.path();
    let mut kernels = Kernels::new();
    let ids = ids(root).unwrap();
    let ids: Vec<&String> = match Sweep::wanted() {
        Some(sweep) => ids[sweep.share(ids.len())].iter().collect(),
        None => ids.iter().step_by(EVERY).collect(),
    };
    for id in ids {
        let case = Case::load(root, id).unwrap().move_to(device);
        let tensors = record(&case);
        if tensors.is_empty() || tensors.iter().any(|t| t.error().is_some()) {
            continue;
        }
        let tensors: Vec<_> = tensors.iter().map(|t| t.to(device)).collect();
        let options = CompileOptions::default();
        if let Ok(compiled) = compile_with((), &options, |()| tensors) {
            collect(compiled.plan(), &mut kernels);
        }
    }
    kernels
}

fn collect(plan: &Plan, kernels: &mut Kernels) {
    for k in &plan.kernels {
        if let Kernel::Cuda(k) = &**k {
            kernels.insert(k.entry.clone(), k.clone());
        }
    }
}

/// The faults of the kernels of a unit.
fn check(unit: &[CudaKernel], most: &Mutex<BTreeMap<&str, (u32, String)>>) -> Vec<String> {
    let mut text = String::from(PRELUDE);
    unit.iter().for_each(|k| text += &k.source());
    let nvrtc = Nvrtc::get().unwrap();
    let mut wrong = Vec::new();
    // Warpgroups are for one architecture.
    let is_for = |capability: &u32| *capability == 90 || unit.iter().all(|k| k.maps.is_empty());
    for capability in [80, 90].into_iter().filter(is_for) {
        let compiled = match nvrtc.compile(&text, Code::Cubin(capability)) {
            Ok(compiled) => compiled,
            Err(e) => return vec![e.to_string()],
        };
        let resources = compiled.resources();
        assert_eq!(resources.len(), unit.len(), "{}", compiled.log);
        for r in resources {
            let kernel = unit.iter().find(|k| k.entry == r.entry).unwrap();
            let note = |what, number| {
                let mut most = most.lock().unwrap();
                let entry = most.entry(what).or_insert((0, String::new()));
                *entry = entry.clone().max((number, r.entry.clone()));
            };
            note("registers", r.registers);
            note("shared memory", r.shared);
            note("local memory", r.stack);
            wrong.extend(
                over_budget(kernel, &r).map(|why| format!("sm_{capability} {}: {why}", r.entry)),
            );
        }
    }
    wrong.extend(without_tensor_cores(unit));
    wrong
}

/// Nothing spills, and a multiprocessor holds at least two blocks and 512 threads, or one block of warpgroups.
fn over_budget(kernel: &CudaKernel, r: &Resources) -> Option<String> {
    let threads: u32 = kernel.block.iter().product();
    let warps = threads.div_ceil(32);
    // Registers are given to warps in units of 8 a thread.
    let by_registers = REGISTERS / (r.registers.next_multiple_of(8) * 32 * warps).max(1);
    let by_shared = SHARED / (r.shared + kernel.shared).max(1);
    let blocks = by_registers.min(by_shared);
    let few = kernel.maps.is_empty() && (blocks < 2 || blocks * threads < 512);
    (r.spilled > 0 || few).then(|| format!("{blocks} blocks of {threads} threads, {r:?}"))
}

/// Products of 16-bit floats, of at least one number, that don't use tensor cores, or don't copy asynchronously
/// although their rows are aligned.
fn without_tensor_cores(unit: &[CudaKernel]) -> Vec<String> {
    let product = |k: &&CudaKernel| {
        let source = k.source();
        let has = |text: &str| source.contains(text);
        let empty = ["m", "n", "k", "batches"].map(|size| has(&format!("Index {size} = 0;")));
        has("constexpr int BM =") && has("typedef unsigned short Elem;") && !empty.contains(&true)
    };
    let halves = unit.iter().filter(|k| k.maps.is_empty());
    let halves: Vec<&CudaKernel> = halves.filter(product).collect();
    if halves.is_empty() {
        return Vec::new();
    }
    let mut text = String::from(PRELUDE);
    halves.iter().for_each(|k| text += &k.source());
    let ptx = Nvrtc::get().unwrap().compile(&text, Code::Ptx(80)).unwrap();
    let ptx = String::from_utf8_lossy(&ptx.image).into_owned();
    let mut wrong = Vec::new();
    for k in halves {
        let body = ptx.split(&format!(".entry {}(", k.entry)).nth(1).unwrap();
        let body = body.split(".entry ").next().unwrap();
        let vector = k.text.scope.contains("_VECTOR = true");
        for (instruction, wanted) in [("mma.sync.aligned.m16n8k16", true), ("cp.async.cg", vector)]
        {
            if body.contains(instruction) != wanted {
                wrong.push(format!("{}: {instruction} is wanted: {wanted}", k.entry));
            }
        }
    }
    wrong
}
