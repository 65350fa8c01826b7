//! Packages whose checksums are taken on trust: an error, or entries that say what they need.

#![no_main]

use kiln_package::Options;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(package) = Options::new().trusted(true).open_bytes(bytes) else {
        return;
    };
    for state in package.states() {
        let _ = package.get(&state.name);
    }
    for name in package.entries() {
        let _ = package.graph(name);
        let Ok(entry) = package.entry(name) else {
            continue;
        };
        let symbols = entry.interface().symbols.iter();
        let sizes: Vec<(&str, i64)> = symbols.map(|s| (&s.name[..], s.min)).collect();
        let _ = entry.memory(&sizes);
    }
});
