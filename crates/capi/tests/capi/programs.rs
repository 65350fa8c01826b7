//! A C program and a Python script that use the library.

use crate::{numbers, package};
use kiln_package::{Buffer, Package};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const IMAGES: usize = 7;

/// The folder of these tests, where Cargo also puts the library.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().to_path_buf()
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Writes the input files of the programs. Returns the paths, and the expected results.
fn prepare(folder: &TempDir) -> ([PathBuf; 3], Vec<u8>) {
    let paths = ["model.kiln", "images", "chances"].map(|name| folder.path().join(name));
    let (bytes, images) = (package(), numbers(0, 36 * IMAGES));
    std::fs::write(&paths[0], &bytes).unwrap();
    let raw: Vec<u8> = images.iter().flat_map(|x| x.to_ne_bytes()).collect();
    std::fs::write(&paths[1], raw).unwrap();
    let images = Buffer::from_slice(&images, &[IMAGES as i64, 1, 6, 6]).unwrap();
    let forward = Package::from_bytes(&bytes)
        .unwrap()
        .entry("forward")
        .unwrap();
    let wanted = forward.run(images).unwrap()[0].to_bytes().unwrap();
    (paths, wanted)
}

/// True if a program exists and succeeds with these arguments.
fn works(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|o| o.status.success())
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[test]
#[cfg(unix)]
fn a_program_in_c_runs_a_package() {
    if !works("cc", &["--version"]) {
        return println!("skipped: there is no C compiler");
    }
    let folder = tempfile::tempdir().unwrap();
    let (paths, wanted) = prepare(&folder);
    let libraries = libraries();
    let program = folder.path().join("classify");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let archive = libraries.join("libkiln_c.a");
    let shared = format!("-Wl,-rpath,{}", libraries.display());
    for dynamic in [true, false] {
        let mut compile = Command::new("cc");
        compile.args([
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-pedantic",
            "-Werror",
            "-O1",
            "-I",
        ]);
        compile.arg(&include).arg(examples().join("classify.c"));
        match dynamic {
            true => compile
                .arg("-L")
                .arg(&libraries)
                .args(["-lkiln_c", &shared]),
            false => compile.arg(&archive).args(["-lpthread", "-ldl", "-lm"]),
        };
        succeeds(compile.arg("-o").arg(&program));
        let said = succeeds(Command::new(&program).args(&paths));
        assert!(
            said.contains("conv.weight has 4 dims and 144 bytes"),
            "{said}"
        );
        assert!(said.contains("must be f32[batch, 1, 6, 6]"), "{said}");
        assert!(std::fs::read(&paths[2]).unwrap() == wanted);
        std::fs::remove_file(&paths[2]).unwrap();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_script_in_python_runs_a_package() {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    if !works(&python, &["-c", "import numpy"]) {
        return println!("skipped: there is no python3 with NumPy (KILN_PYTHON names another)");
    }
    let folder = tempfile::tempdir().unwrap();
    let (paths, wanted) = prepare(&folder);
    let mut script = Command::new(python);
    script.arg(examples().join("classify.py"));
    let said = succeeds(script.arg(libraries().join("libkiln_c.so")).args(&paths));
    assert!(said.contains("['forward'] 4 states"), "{said}");
    assert!(said.contains("must be f32[batch, 1, 6, 6]"), "{said}");
    assert!(std::fs::read(&paths[2]).unwrap() == wanted);
}
