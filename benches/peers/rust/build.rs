//! The versions of the libraries, for the table.

fn main() {
    println!("cargo:rerun-if-changed=Cargo.lock");
    let lock = std::fs::read_to_string("Cargo.lock").expect("a lock file");
    for (name, key) in [("candle-core", "CANDLE"), ("burn", "BURN"), ("tract-onnx", "TRACT")] {
        let mut lines = lock.lines().skip_while(|l| *l != format!("name = \"{name}\""));
        let version = lines.nth(1).and_then(|l| l.split('"').nth(1)).expect("a version");
        println!("cargo:rustc-env={key}_VERSION={version}");
    }
}
