//! The PTX fixtures and how NVRTC made them. With `KILN_NVRTC`, the folder that holds NVRTC 13.0's `lib` and
//! `include`, they are compared with what it makes today; `KILN_UPDATE_FIXTURES=1` writes them.

use crate::nvrtc::Nvrtc;
use crate::support::{fixture, fixture_path};
use crate::{bugs, expressions};

/// A fixture: its path, the name and text of its source, and the architecture.
pub struct Fixture {
    pub path: String,
    pub name: String,
    pub source: String,
    pub architecture: &'static str,
}

/// The sample kernels.
const KERNELS: [&str; 7] = [
    "ew",
    "ew_bf16",
    "softmax",
    "matmul_smem",
    "mma_bf16",
    "wgmma",
    "misc",
];

fn all() -> Vec<Fixture> {
    let mut all = Vec::new();
    for kernel in KERNELS {
        let name = format!("{kernel}.cu");
        let source = fixture(&format!("kernels/{name}"));
        let path = format!("kernels/{kernel}.ptx");
        all.push(Fixture {
            path,
            name,
            source,
            architecture: "sm_90a",
        });
    }
    for bug in bugs::BUGS {
        let name = format!("{}.cu", bug.kernel);
        let source = fixture(&format!("kernels/{name}"));
        assert_eq!(source.matches(bug.right).count(), 1, "{}", bug.name);
        let source = source.replace(bug.right, bug.wrong);
        let path = format!("bugs/{}.ptx", bug.name);
        all.push(Fixture {
            path,
            name,
            source,
            architecture: "sm_90a",
        });
    }
    for architecture in ["sm_80", "sm_90a"] {
        let path = format!("expressions.{architecture}.ptx");
        let (name, source) = ("expressions.cu".into(), expressions::source());
        all.push(Fixture {
            path,
            name,
            source,
            architecture,
        });
    }
    all
}

#[test]
fn fixtures_are_what_nvrtc_makes() {
    let Some(folder) = std::env::var_os("KILN_NVRTC") else {
        println!("skipped: KILN_NVRTC does not name a folder with NVRTC 13.0");
        return;
    };
    let nvrtc = Nvrtc::open(folder.as_ref());
    let update = std::env::var_os("KILN_UPDATE_FIXTURES").is_some();
    for f in all() {
        let ptx = nvrtc.compile(&f.name, &f.source, f.architecture);
        if update {
            std::fs::write(fixture_path(&f.path), ptx).unwrap();
        } else {
            assert!(fixture(&f.path) == ptx, "{} is out of date", f.path);
        }
    }
}
