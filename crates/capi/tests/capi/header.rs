//! The header matches the functions.

use std::path::Path;

/// Compares the header with the functions. `KILN_UPDATE_HEADER=1` writes it.
#[test]
fn the_header_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("src/status.rs"))
        .with_src(folder.join("src/tensor.rs"))
        .with_src(folder.join("src/package.rs"))
        .with_src(folder.join("src/dlpack.rs"))
        .with_src(folder.join("src/run.rs"))
        .generate()
        .unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    let path = folder.join("include/kiln.h");
    if std::env::var_os("KILN_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read(&path).unwrap_or_default();
    assert!(
        stored == text,
        "the functions are others than the header's; run this test with KILN_UPDATE_HEADER=1"
    );
}
