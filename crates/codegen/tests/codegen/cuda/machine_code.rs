//! The issue slots of main loops, counted in machine code. `KILN_NVDISASM` or `PATH` has NVIDIA's disassembler
//! (`pip install nvidia-cuda-nvdisasm`).

use super::candidates::{every, lowered_for};
use super::choice::{Drawn, chosen};
use super::{im2col, large_product, layouts, lowered, parsed};
use crate::device;
use kiln_base::{DType, Gpu, ceil};
use kiln_codegen::{Launch, Layout, Sequence};
use kiln_ir::Graph;
use kiln_plan::schedule::{self, Multiply};
use kiln_runtime::cuda::Code;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A loop that multiplies: its instructions, how many of them are products, and the operations behind the last product.
#[derive(Clone, Debug)]
struct Loop {
    slots: usize,
    products: usize,
    after: BTreeMap<String, usize>,
}

/// Returns the disassembler; `None`, with a line that says so, if there is none.
fn nvdisasm() -> Option<PathBuf> {
    let named = std::env::var_os("KILN_NVDISASM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("nvdisasm"));
    let tool = named.into_iter().chain(found).find(|file| file.is_file());
    if tool.is_none() {
        eprintln!("skipped: machine code is not counted here: no nvdisasm");
    }
    tool
}

/// Returns the instructions of machine code with a kernel, and for each backward branch the first and last of its loop.
fn disassembled(tool: &PathBuf, cubin: &[u8]) -> (Vec<String>, Vec<(usize, usize)>) {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let name = [std::process::id(), FILES.fetch_add(1, Ordering::Relaxed)];
    let file = std::env::temp_dir().join(format!("kiln-{}-{}.cubin", name[0], name[1]));
    std::fs::write(&file, cubin).unwrap();
    let output = Command::new(tool).arg("-c").arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (mut code, mut labels) = (Vec::new(), HashMap::new());
    for line in text.lines() {
        if let Some(label) = line.strip_prefix(".L_").and_then(|l| l.strip_suffix(':')) {
            labels.insert(label.to_string(), code.len());
        } else if let Some((_, rest)) = line.trim().split_once("*/")
            && line.trim().starts_with("/*")
            && let Some((instruction, _)) = rest.trim().split_once(';')
        {
            code.push(instruction.trim().to_string());
        }
    }
    let target = |i: &String| {
        let label = i.split_once("`(.L_")?.1.split_once(')')?.0;
        labels.get(label).copied().filter(|_| i.contains("BRA"))
    };
    let branches = code.iter().enumerate();
    let loops = branches.filter_map(|(at, i)| Some((target(i).filter(|to| *to < at)?, at)));
    let loops = loops.collect();
    (code, loops)
}

/// Returns the innermost loop of all products in a loop, of a kernel that spills nothing.
fn main_loop(tool: &PathBuf, cubin: &[u8]) -> Loop {
    let (code, loops) = disassembled(tool, cubin);
    let operation = |i: &String| {
        let words = i
            .split(' ')
            .find(|w| !w.starts_with('@'))
            .unwrap_or_default();
        words.split('.').next().unwrap_or_default().to_string()
    };
    let spills = |i: &&String| ["LDL", "STL"].contains(&&*operation(i));
    assert_eq!(code.iter().find(spills), None);
    let main_loop = |names: &[&str]| {
        let is_product = |i: &&String| names.contains(&&*operation(i));
        let last = code.iter().rposition(|i| is_product(&i))?;
        let mut after = BTreeMap::new();
        for i in &code[last + 1..] {
            *after.entry(operation(i)).or_default() += 1;
        }
        let products = |(from, to): &(usize, usize)| {
            let products = code[*from..=*to].iter().filter(is_product).count();
            (products > 0).then_some((products, to - from + 1))
        };
        let loops = loops.iter().filter_map(products);
        let (products, slots) =
            loops.min_by_key(|(products, slots)| (Reverse(*products), *slots))?;
        Some(Loop {
            slots,
            products,
            after,
        })
    };
    let by_tensor_cores = main_loop(&["HMMA", "HGMMA", "IMMA", "IGMMA"]);
    let main_loop = by_tensor_cores.or_else(|| main_loop(&["FFMA"]));
    main_loop.expect("a loop multiplies")
}

/// Compiles a program without warnings and returns the loop of its only kernel.
fn compiled_loop(tool: &PathBuf, sequence: &Sequence, capability: u32, what: &str) -> Loop {
    let nvrtc = device::nvrtc().expect("the caller has asked");
    let compiled = nvrtc.compile(&device::unit(sequence), Code::Cubin(capability));
    let compiled = compiled.unwrap_or_else(|e| panic!("{what}: {e}"));
    for warning in ["C7508", "C7510"] {
        assert!(!compiled.log.contains(warning), "{what}: {}", compiled.log);
    }
    let found = main_loop(tool, &compiled.image);
    println!("{what}: {} slots, {} products", found.slots, found.products);
    found
}

/// Bars for the default kernels of large products, in every order of the operands.
#[test]
fn issue_slots_of_large_products() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    for (capability, gpu) in device::architectures() {
        for order in 0..4 {
            let [a, b] = [order & 1 != 0, order & 2 != 0];
            let graph = large_product(DType::BF16, [a, b]);
            let program = lowered_for(gpu, &graph);
            for (at, (name, _, sequence)) in every(&program).into_iter().enumerate() {
                // The default, and for one order every other one of warpgroups.
                if at > 0 && !(order == 0 && name.starts_with("wgmma")) {
                    continue;
                }
                let what = format!("sm_{capability} {name}, order {order}");
                let Loop {
                    slots,
                    products,
                    after,
                } = compiled_loop(&tool, &sequence, capability, &what);
                if name.starts_with("wgmma") {
                    is_stored_by_tma(&name.parse().unwrap(), &after, &what);
                }
                match name.starts_with("wgmma") {
                    // A product of 64 x 256 x 16 takes tensor cores 128 cycles, in which four schedulers issue for
                    // eight warps.
                    true => assert!(25 * products >= slots, "{name}: {slots} for {products}"),
                    // A product of 16 x 8 x 16 takes a scheduler's tensor core 4 cycles.
                    false => assert!(5 * products >= slots, "{name}: {slots} for {products}"),
                }
            }
        }
    }
}

/// The same for every candidate of products of few rows or few columns whose warps multiply parts of at least 32 x 32.
#[test]
fn issue_slots_of_narrow_products() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    let (capability, gpu) = device::architectures()[0];
    let mut found = BTreeSet::new();
    for (order, [m, n]) in (0..8).map(|i| (i % 4, [[32, 4096], [4096, 32]][i / 4])) {
        let shape = |is_transposed: bool, [rows, columns]: [usize; 2]| match is_transposed {
            true => ([columns, rows], "[1, 0]"),
            false => ([rows, columns], "[0, 1]"),
        };
        let (a, a_perm) = shape(order & 1 != 0, [m, 4096]);
        let (b, b_perm) = shape(order & 2 != 0, [4096, n]);
        let graph = parsed(&format!(
            "%0: bf16{a:?} = input(index: 0, role: Data)
             %1: bf16{b:?} = input(index: 1, role: Data)
             %2: bf16[{m}, 4096] = permute(perm: {a_perm}) %0
             %3: bf16[4096, {n}] = permute(perm: {b_perm}) %1
             %4: bf16[{m}, {n}] = matmul %2, %3
             return %4"
        ));
        for (name, _, sequence) in every(&lowered_for(gpu, &graph)) {
            let schedule: schedule::Gpu = name.parse().unwrap();
            let [rows, columns, _] = schedule.tile;
            let is_large = schedule.warp.into_iter().all(|n| n >= 32);
            if !is_large || !found.insert((order, rows, columns, schedule.stages)) {
                continue;
            }
            let what = format!("sm_{capability} {name}, order {order}");
            let Loop {
                slots, products, ..
            } = compiled_loop(&tool, &sequence, capability, &what);
            assert!(5 * products >= slots, "{what}: {slots} for {products}");
        }
    }
    assert!(found.len() > 4, "{found:?}");
}

/// Checks that a result of 16 bits is stored as matrices and boxes, and bounds the slots behind the last product: a
/// comparison, a selection and half a conversion for each accumulator, some for each box and tile, and those of the
/// thread that copies operands.
fn is_stored_by_tma(schedule: &schedule::Gpu, after: &BTreeMap<String, usize>, what: &str) {
    let accumulators = schedule.warp.map(usize::from).iter().product::<usize>() / 128;
    let slots: usize = after.values().sum();
    println!("{what}: {slots} slots for {accumulators} accumulators");
    let count = |operation: &str| after.get(operation).copied().unwrap_or(0);
    assert_eq!(count("STG"), 0, "{what}: {after:?}");
    assert!(
        count("STSM") >= accumulators / 8 && count("UTMASTG") > 0,
        "{what}: {after:?}"
    );
    assert!(slots <= 3 * accumulators + 440, "{what}: {after:?}");
}

/// The same for products of f32: multiply-adds are at least 0.85 of all instructions.
#[test]
fn issue_slots_of_f32() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    for (capability, gpu) in device::architectures() {
        for order in 0..4 {
            let graph = large_product(DType::F32, [order & 1 != 0, order & 2 != 0]);
            let (schedule, _) = chosen(gpu, &graph);
            assert_eq!(
                (schedule.tile, schedule.warp),
                ([128, 128, 16], [8, 8]),
                "{schedule}"
            );
            let sequence = lowered_for(gpu, &graph).sequence();
            let what = format!("sm_{capability} {schedule}, order {order}");
            let Loop {
                slots, products, ..
            } = compiled_loop(&tool, &sequence, capability, &what);
            assert_eq!(products, 8 * 8 * 16, "{what}");
            assert!(100 * products >= 85 * slots, "{what}: {slots} slots");
        }
    }
}

/// Bars for the schedules that the model chooses for products of many sizes. Smaller parts than 32 x 32 are only chosen
/// for products of few rows or columns, or of fewer tiles than there are multiprocessors.
#[test]
fn issue_slots_of_chosen_schedules() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    let mut found = BTreeMap::new();
    for drawn in Drawn::all() {
        let (schedule, _) = chosen(drawn.gpu, &drawn.graph);
        let ([m, n, _], [rows, columns]) = (drawn.sizes, schedule.warp.map(i64::from));
        let tiles = ceil(m, 64) * ceil(n, 64);
        let is_small = m.min(n) < 64 || tiles < i64::from(drawn.gpu.processors);
        assert!(rows.min(columns) >= 32 || is_small, "{m}x{n}: {schedule}");
        let one = schedule::Gpu {
            raster: 1,
            parts: 1,
            ..schedule
        };
        let name = format!("sm_{} {}", drawn.capability, drawn.dtype.is_byte());
        found.entry(format!("{name} {one}")).or_insert(drawn);
    }
    assert!(found.len() > 30, "{}", found.len());
    for drawn in found.into_values() {
        let (schedule, _) = chosen(drawn.gpu, &drawn.graph);
        let sequence = lowered_for(drawn.gpu, &drawn.graph).sequence();
        let what = format!("sm_{} {} {schedule}", drawn.capability, drawn.dtype);
        let Loop {
            slots, products, ..
        } = compiled_loop(&tool, &sequence, drawn.capability, &what);
        let most = match (schedule.multiply, schedule.warp) {
            (Multiply::Wgmma, _) => 25,
            (_, [rows, columns]) if rows.min(columns) >= 32 => 5,
            _ => 13,
        };
        assert!(most * products >= slots, "{what}: {slots} for {products}");
    }
}

/// The same for products of f32 rounded to TF32, both of whose operands have contiguous terms.
#[test]
fn issue_slots_of_tf32() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    let graph = parsed(
        "%0: f32[4096, 4096] = input(index: 0, role: Data)
         %1: f32[4096, 4096] = input(index: 1, role: Data)
         %2: f32[4096, 4096] = permute(perm: [1, 0]) %1
         %3: f32[4096, 4096] = matmul %0, %2
         return %3",
    );
    let candidates = every(&lowered_for(Gpu::H100, &graph)).into_iter();
    let mut found = 0;
    for (name, _, sequence) in candidates.filter(|c| c.0.starts_with("wgmma_tf32")) {
        let Loop {
            slots, products, ..
        } = compiled_loop(&tool, &sequence, 90, &name);
        assert!(25 * products >= slots, "{name}: {slots} for {products}");
        found += 1;
    }
    assert!(found > 1);
}

/// The same for products of bytes, half as many of which pass through tensor cores in as many instructions.
#[test]
fn issue_slots_of_bytes() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    let graph = parsed(
        "%0: u8[4096, 4096] = input(index: 0, role: Data)
         %1: i8[4096, 4096] = input(index: 1, role: Data)
         %2: i32[4096, 4096] = cast %0
         %3: i32[4096, 4096] = cast %1
         %4: i32[4096, 4096] = permute(perm: [1, 0]) %3
         %5: i32[4096, 4096] = matmul %2, %4
         return %5",
    );
    for (capability, gpu) in device::architectures() {
        let program = lowered_for(gpu, &graph);
        let what = format!("sm_{capability} {}", program.tasks[0].candidate().name());
        let found = compiled_loop(&tool, &program.sequence(), capability, &what);
        let Loop {
            slots, products, ..
        } = found;
        let most = if capability == 90 { 25 } else { 5 };
        assert!(most * products >= slots, "{what}: {slots} for {products}");
    }
}

/// A bar for a convolution that reads a copy of its image with channels last, and writes channels first.
#[test]
fn issue_slots_of_a_convolution() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    let graph = parsed(
        "%0: bf16[32, 128, 28, 28] = input(index: 0, role: Data)
         %1: bf16[128, 128, 3, 3] = input(index: 1, role: Parameter)
         %2: bf16[32, 128, 28, 28] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %0, %1
         %3: bf16[32, 128, 28, 28] = relu %2
         return %3",
    );
    let [(capability, ampere), _] = device::architectures();
    let program = layouts::lowered_for(ampere, &graph, Layout::Auto, false);
    let mut sequence = program.sequence();
    let is_convolution = |l: &Launch| l.kernel.name().contains("conv");
    sequence.launches.retain(is_convolution);
    let found = compiled_loop(&tool, &sequence, capability, "convolution");
    let Loop {
        slots, products, ..
    } = found;
    assert!(4 * products >= slots, "{slots} for {products}");
}

/// The same for convolutions, whose operands im2col copies bring.
#[test]
fn issue_slots_of_convolutions() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    let of = |graph: fn(&str, [usize; 3]) -> Graph| im2col::RESNET.map(|shape| (shape, graph));
    let all = [of(im2col::bottleneck), of(im2col::gradient_of_filters)].concat();
    for (i, (shape, graph)) in all.into_iter().enumerate() {
        let program = lowered(&graph("bf16", shape), true).unwrap();
        let sequence = im2col::of_convolutions(&program);
        let kind = if i < im2col::RESNET.len() {
            "convolution"
        } else {
            "gradient"
        };
        let what = format!("sm_90 {kind} {shape:?}");
        let Loop {
            slots, products, ..
        } = compiled_loop(&tool, &sequence, 90, &what);
        assert!(25 * products >= slots, "{what}: {slots} for {products}");
    }
}

/// The same for products whose left operand is made in registers. What takes instructions on pairs takes no more of them
/// than an operand in memory.
#[test]
fn issue_slots_of_prologues() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    let normalised = "%3: bf16[4096, 4096] = broadcast %2
         %4: bf16[4096, 4096] = mul %0, %3
         %5: bf16[4096, 4096] = add %4, %3
         %6: bf16[4096, 4096] = relu %5";
    for (dtype, prologue, most) in [
        ("f32", "%3: bf16[4096, 4096] = cast %0", 25),
        ("bf16", "%3: bf16[4096, 4096] = relu %0", 25),
        (
            "bf16",
            "%3: bf16[4096, 4096] = broadcast %2
             %4: bf16[4096, 4096] = mul %0, %3",
            25,
        ),
        (
            "bf16",
            "%3: bf16[4096, 4096] = broadcast %2
             %4: bf16[4096, 4096] = add %0, %3
             %5: bf16[4096, 4096] = relu %4",
            25,
        ),
        ("bf16", normalised, 70),
    ] {
        let made = 2 + prologue.lines().count();
        let [right, product] = [made + 1, made + 2];
        let graph = parsed(&format!(
            "%0: {dtype}[4096, 4096] = input(index: 0, role: Data)
             %1: bf16[256, 4096] = input(index: 1, role: Data)
             %2: bf16[4096] = input(index: 2, role: Data)
             {prologue}
             %{right}: bf16[4096, 256] = permute(perm: [1, 0]) %1
             %{product}: bf16[4096, 256] = matmul %{made}, %{right}
             return %{product}"
        ));
        let all = every(&lowered_for(Gpu::H100, &graph)).into_iter();
        let mut found = 0;
        for (name, _, sequence) in all.filter(|c| c.0.starts_with("wgmma")) {
            let schedule: schedule::Gpu = name.parse().unwrap();
            let columns = usize::from(schedule.tile[1]);
            let what = format!("{prologue} by {name}");
            let Loop {
                slots, products, ..
            } = compiled_loop(&tool, &sequence, 90, &what);
            assert!(most * products >= slots, "{what}: {slots} for {products}");
            // A product of 64 x 256 x 16 takes tensor cores 128 cycles, in which a scheduler issues for a warp of each
            // warpgroup.
            let is_hidden = 2 * slots <= products * columns;
            assert!(is_hidden || columns < 256, "{what}: {slots}");
            found += 1;
        }
        assert!(found > 1, "{prologue}");
    }
}

/// Bars for attention by warpgroups, all of whose slots are counted: masked keys are in the loops of causal ones too.
#[test]
fn issue_slots_of_attention() {
    let (Some(_), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    for (width, causal, dropout, most) in [
        (128, false, "", 40),
        (128, true, "", 56),
        (64, false, "", 45),
        (64, true, "", 68),
        (128, true, ", dropout: Some(Float(0.1))", 300),
    ] {
        let key = if dropout.is_empty() { "" } else { ", %3" };
        let graph = parsed(&format!(
            "%0: bf16[8, 2048, 16, {width}] = input(index: 0, role: Data)
             %1: bf16[8, 2048, 16, {width}] = input(index: 1, role: Data)
             %2: bf16[8, 2048, 16, {width}] = input(index: 2, role: Data)
             %3: i64[2] = input(index: 3, role: RandomKey)
             %4: bf16[8, 16, 2048, {width}] = permute(perm: [0, 2, 1, 3]) %0
             %5: bf16[8, 16, 2048, {width}] = permute(perm: [0, 2, 1, 3]) %1
             %6: bf16[8, 16, 2048, {width}] = permute(perm: [0, 2, 1, 3]) %2
             %7: bf16[8, 16, 2048, {width}] = attention(scale: Float(0.125), causal: {causal}{dropout}) %4, %5, %6{key}
             return %7"
        ));
        let sequence = lowered(&graph, true).unwrap().sequence();
        let what = format!("sm_90 attention {width} wide, causal {causal}{dropout}");
        let Loop {
            slots, products, ..
        } = compiled_loop(&tool, &sequence, 90, &what);
        // Products of a tile of keys: 64 x 128 x 16 scores, and as many or half as many sums.
        assert_eq!(products, width / 16 + 8, "{what}");
        assert!(most * products >= slots, "{what}: {slots} for {products}");
    }
}
