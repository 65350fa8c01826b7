//! Devices.

use crate::abi::Out;
use crate::driver::driver;
use kiln_gpu_emulator::MAX_SHARED;
use std::ffi::{c_char, c_int};

/// A `CUdevice_attribute`.
fn attribute(attribute: c_int) -> c_int {
    let (major, minor) = driver().config.capability;
    match attribute {
        1..=3 => 1024,   // threads of a block, its x and y
        4 => 64,         // its z
        5 => c_int::MAX, // blocks in x
        6 | 7 => 65535,  // in y and z
        8 => 48 << 10,   // shared memory of a block
        9 => 64 << 10,   // constant memory
        10 => 32,        // threads of a warp
        12 => 65536,     // registers of a block
        13 => 1_980_000, // kHz
        16 => 132,       // multiprocessors
        31 => 1,         // concurrent kernels
        36 => 2_619_000, // kHz of memory
        37 => 5120,      // bits of its bus
        38 => 50 << 20,  // second-level cache
        39 => 2048,      // threads of a multiprocessor
        40 => 3,         // copy engines
        41 => 1,         // unified addressing
        75 => major,
        76 => minor,
        81 => 228 << 10,           // shared memory of a multiprocessor
        82 => 65536,               // its registers
        97 => MAX_SHARED as c_int, // shared memory of a block, on request
        106 => 32,                 // blocks of a multiprocessor
        111 => 1 << 10,            // shared memory that is reserved
        115 => 1,                  // memory pools
        _ => 0,
    }
}

exports! {
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        driver().device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        driver().check_initialised()?;
        count.set(driver().config.devices as c_int)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: c_int, device: c_int) {
        let index = driver().device(device)?;
        let name_of_device = if driver().config.instruction_time.is_some() { "Kiln timed GPU" } else { "Kiln GPU emulator" };
        name.set_text(&format!("{name_of_device} {index}"), usize::try_from(room).unwrap_or(0))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        driver().device(device)?;
        bytes.set(driver().config.memory as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, which: c_int, device: c_int) {
        driver().device(device)?;
        value.set(attribute(which))
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: c_int, device: c_int) {
        let index = driver().device(device)?;
        text.set_text(&format!("0000:{index:02x}:00.0"), usize::try_from(room).unwrap_or(0))
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let (device, peer) = (driver().device(device)?, driver().device(peer)?);
        can.set((device != peer) as c_int)
    }
}
