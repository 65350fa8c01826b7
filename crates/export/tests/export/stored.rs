//! The package that the tests of `kiln-package` read in this and all later versions.

use crate::support::trainee;
use kiln_package::{Buffer, Package};
use std::path::PathBuf;

fn path() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.join("../package/tests/fixtures/format3.kiln")
}

/// With `KILN_STORE_PACKAGE=1`, writes the file. It stays unchanged as long as the format does: a new format gets a new
/// file.
#[test]
fn what_is_exported_says_what_the_stored_package_says() {
    let t = trainee(1);
    let package = t.package();
    if std::env::var_os("KILN_STORE_PACKAGE").is_some() {
        let values: Vec<f32> = (0..12).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
        let rows = Buffer::from_slice(&values, &[4, 3]).unwrap();
        let out = package.entry("forward").unwrap().run(rows).unwrap();
        std::fs::create_dir_all(path().parent().unwrap()).unwrap();
        let wanted = out[0].to_bytes().unwrap();
        t.builder()
            .asset("wanted.f32", wanted)
            .save(path())
            .unwrap();
    }
    let stored = Package::open(path()).unwrap();
    assert_eq!(stored.states(), package.states());
    for name in ["forward", "train_step"] {
        assert_eq!(
            stored.interface(name).unwrap(),
            package.interface(name).unwrap()
        );
    }
    for state in stored.states() {
        let bytes = |p: &Package| p.get(&state.name).unwrap().to_bytes().unwrap();
        assert_eq!(bytes(&stored), bytes(&package), "{}", state.name);
    }
}
