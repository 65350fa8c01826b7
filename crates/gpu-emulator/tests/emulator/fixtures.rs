//! The PTX fixtures and their compilation by NVRTC. If `KILN_NVRTC` leads to the same NVRTC with its headers, the
//! fixtures are compared with its output; `KILN_UPDATE_FIXTURES=1` writes them.

use crate::nvrtc::Nvrtc;
use crate::support::{fixture, fixture_path};
use crate::{bugs, expressions};
use std::path::{Path, PathBuf};

/// A fixture: its path, the name and text of its source, and the architecture.
pub struct Fixture {
    pub path: String,
    pub name: String,
    pub source: String,
    pub architecture: &'static str,
}

/// The sample kernels.
const KERNELS: [&str; 11] = [
    "ew",
    "ew_bf16",
    "softmax",
    "matmul_smem",
    "mma_bf16",
    "wgmma",
    "warpgroups",
    "clusters",
    "stores",
    "units",
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

/// The folder with NVRTC's `lib` and `include`: the path in `KILN_NVRTC` or a folder above it.
fn nvrtc_folder() -> Option<PathBuf> {
    let given = PathBuf::from(std::env::var_os("KILN_NVRTC")?);
    let complete = |folder: &&Path| {
        folder.join("lib/libnvrtc.so.13").exists() && folder.join("include/cuda_fp16.h").exists()
    };
    given
        .ancestors()
        .take(3)
        .find(complete)
        .map(Path::to_path_buf)
}

#[test]
fn fixtures_are_what_nvrtc_makes() {
    let Some(folder) = nvrtc_folder() else {
        println!("skipped: KILN_NVRTC does not lead to NVRTC 13 with its headers");
        return;
    };
    let nvrtc = Nvrtc::open(&folder);
    let update = std::env::var_os("KILN_UPDATE_FIXTURES").is_some();
    let version = |ptx: &str| {
        ptx.lines()
            .find(|l| l.contains("release"))
            .map(str::to_string)
    };
    for f in all() {
        let ptx = nvrtc.compile(&f.name, &f.source, f.architecture);
        if update {
            std::fs::write(fixture_path(&f.path), ptx).unwrap();
            continue;
        }
        let stored = fixture(&f.path);
        if version(&ptx) != version(&stored) {
            println!("skipped: the fixtures are those of {:?}", version(&stored));
            return;
        }
        assert!(stored == ptx, "{} is out of date", f.path);
    }
}
