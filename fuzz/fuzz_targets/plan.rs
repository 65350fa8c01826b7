//! Entries behind a right header and checksum: an error, or a program that is linked for small sizes.

#![no_main]

use kiln_plan::{Entry, FORMAT};
use kiln_runtime::Executable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let sum = body.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut bytes = b"kilnentr".to_vec();
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend(sum.to_le_bytes());
    bytes.extend(body);
    let Ok(entry) = Entry::from_bytes(&bytes) else {
        return;
    };
    let sizes: Vec<i64> = entry.plan.symbols.iter().map(|s| s.min).collect();
    if let Ok(executable) = Executable::new(entry.plan) {
        let _ = executable.memory(&sizes);
    }
});
