//! The issue slots of main loops, counted in machine code. `KILN_NVDISASM` or `PATH` has NVIDIA's disassembler
//! (`pip install nvidia-cuda-nvdisasm`).

use super::candidates::every;
use super::parsed;
use crate::device;
use kiln_base::Machine;
use kiln_codegen::{Options, lower};
use kiln_runtime::cuda::Code;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

/// A loop that multiplies: its instructions, and how many of them are products.
#[derive(Clone, Debug)]
struct Loop {
    slots: usize,
    products: usize,
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
    let file = std::env::temp_dir().join(format!("kiln-{}.cubin", std::process::id()));
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

/// Returns the innermost loop that multiplies, of a kernel that spills nothing.
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
    let products = |(from, to): &(usize, usize)| {
        let is_product = |i: &&String| ["HMMA", "HGMMA", "IMMA", "IGMMA"].contains(&&*operation(i));
        let products = code[*from..=*to].iter().filter(is_product).count();
        let slots = to - from + 1;
        (products > 0).then_some(Loop { slots, products })
    };
    let found = loops.iter().filter_map(products);
    found.min_by_key(|l| l.slots).expect("a loop multiplies")
}

/// Bars for the default kernels of large products, in every order of the operands.
#[test]
fn issue_slots_of_large_products() {
    let (Some(nvrtc), Some(tool)) = (device::nvrtc(), nvdisasm()) else {
        return;
    };
    for (capability, gpu) in device::architectures() {
        for order in 0..4 {
            let [a, b] = [order & 1 != 0, order & 2 != 0];
            let perm = |turned: bool| if turned { "[1, 0]" } else { "[0, 1]" };
            let graph = parsed(&format!(
                "%0: bf16[4096, 4096] = input(index: 0, role: Data)
                 %1: bf16[4096, 4096] = input(index: 1, role: Data)
                 %2: bf16[4096, 4096] = permute(perm: {}) %0
                 %3: bf16[4096, 4096] = permute(perm: {}) %1
                 %4: bf16[4096, 4096] = matmul %2, %3
                 %5: bf16[4096, 4096] = relu %4
                 return %5",
                perm(a),
                perm(b)
            ));
            let options = Options {
                machine: Machine::Gpu(gpu),
                candidates: true,
                ..Options::default()
            };
            let program = lower(&graph, &options).unwrap();
            for (at, (name, _, sequence)) in every(&program).into_iter().enumerate() {
                // The default, and for one order every other one of warpgroups.
                if at > 0 && !(order == 0 && name.starts_with("wgmma")) {
                    continue;
                }
                let text = device::unit(&sequence);
                let compiled = nvrtc.compile(&text, Code::Cubin(capability)).unwrap();
                for warning in ["C7508", "C7510"] {
                    assert!(!compiled.log.contains(warning), "{name}: {}", compiled.log);
                }
                let Loop { slots, products } = main_loop(&tool, &compiled.image);
                println!(
                    "sm_{capability} {name}, order {order}: {slots} slots, {products} products"
                );
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
