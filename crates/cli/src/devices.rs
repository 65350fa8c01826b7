//! The devices of this machine.

use kiln::Device;
use serde::Serialize;
use std::fmt::Write as _;

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// How programs name it: `cpu`, `cuda:0`.
    pub device: String,
    /// Its maker's name.
    pub name: String,
    /// Of a GPU: its compute capability.
    pub capability: Option<(u32, u32)>,
    /// Of a CPU: Kiln's threads.
    pub threads: Option<usize>,
    /// Of a GPU: bytes of memory.
    pub memory: Option<usize>,
    /// What measurements of it are kept under.
    pub traits: String,
}

/// All devices, and why there is no GPU, where there is none.
pub fn list() -> (Vec<Info>, Option<String>) {
    let mut all = vec![info(Device::Cpu)];
    let count = Device::cuda_count();
    let mut why = None;
    match Device::cuda(0) {
        Err(e) => why = Some(e.to_string()),
        Ok(_) => all.extend((0..count).filter_map(|n| Device::cuda(n).ok()).map(info)),
    }
    (all, why)
}

fn info(device: Device) -> Info {
    let gpu = device.gpu();
    Info {
        device: device.to_string(),
        name: device.name(),
        capability: device.capability(),
        threads: gpu.is_none().then(kiln::threads),
        memory: gpu.as_ref().map(|g| g.total_memory()),
        traits: kiln_compiler::tune::device(gpu.as_deref()),
    }
}

/// A text for the terminal.
pub fn text((devices, why): &(Vec<Info>, Option<String>)) -> String {
    let mut text = String::new();
    for d in devices {
        let _ = write!(text, "{:<8} {}", d.device, d.name);
        if let Some((major, minor)) = d.capability {
            let _ = write!(text, ", compute capability {major}.{minor}");
        }
        if let Some(bytes) = d.memory {
            let _ = write!(text, ", {:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
        }
        if let Some(threads) = d.threads {
            let _ = write!(text, ", {threads} threads");
        }
        let _ = writeln!(text, "\n         traits: {}", d.traits);
    }
    if let Some(why) = why {
        let _ = writeln!(text, "no GPU: {why}");
    }
    text
}
