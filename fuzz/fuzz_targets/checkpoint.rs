//! Files of tensors, whichever they are by their first bytes: PyTorch's checkpoints, safetensors, NumPy's arrays.

#![no_main]

use kiln_formats::{load, npy_from_bytes, read_pickle};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

/// A file that each input is written to, since readers seek.
static FILE: LazyLock<std::path::PathBuf> = LazyLock::new(|| {
    let name = format!("kiln-fuzz-{}", std::process::id());
    std::env::temp_dir().join(name)
});

fuzz_target!(|bytes: &[u8]| {
    let _ = npy_from_bytes(bytes);
    if std::fs::write(&*FILE, bytes).is_ok() {
        let _ = load(&*FILE);
        let _ = read_pickle(&*FILE);
    }
});
