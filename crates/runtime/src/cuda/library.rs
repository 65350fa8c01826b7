//! Finding and opening libraries at run time: nothing of CUDA is needed to build.

use crate::error::Error;
use libloading::Library;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What was tried for a library, for the message when all of it fails.
#[derive(Default)]
pub(super) struct Search {
    tried: Vec<String>,
}

impl Search {
    /// Opens `path`; a failure is remembered. A path that does not exist is not opened.
    pub(super) fn open(&mut self, path: &Path) -> Option<Library> {
        if path.components().count() > 1 && !path.exists() {
            self.tried.push(format!("{}: no such file", path.display()));
            return None;
        }
        // SAFETY: the initialisers of NVIDIA's libraries have no preconditions; that the file is one
        // of these is what the user's installation says.
        match unsafe { Library::new(path) } {
            Ok(library) => Some(library),
            Err(e) => {
                let mut e: &dyn std::error::Error = &e;
                while let Some(source) = e.source() {
                    e = source;
                }
                self.failed(path, e);
                None
            }
        }
    }

    pub(super) fn failed(&mut self, path: &Path, why: impl std::fmt::Display) {
        self.tried.push(format!("{}: {why}", path.display()));
    }

    /// The error that lists every place.
    pub(super) fn error(self, what: &str, hint: &str) -> Error {
        Error::Cuda(format!(
            "{what} was not found; {hint}. Looked for it in\n  {}",
            self.tried.join("\n  ")
        ))
    }
}

/// A symbol of a library that the caller keeps open.
///
/// # Safety
/// `F` must be the type of the function of this name.
pub(super) unsafe fn symbol<F: Copy>(
    library: &Library,
    name: &str,
) -> std::result::Result<F, String> {
    // SAFETY: as this function's.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(f) => Ok(*f),
        Err(_) => Err(format!("it has no {name}")),
    }
}

/// Declares a table of functions of a library: names, types and a constructor.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($field:ident = $name:literal ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> std::ffi::c_int,)*
        }
        impl $table {
            fn load(library: &libloading::Library) -> std::result::Result<$table, String> {
                Ok($table {
                    // SAFETY: the type is the one that NVIDIA documents for this name.
                    $($field: unsafe { super::library::symbol(library, $name)? },)*
                })
            }
        }
    };
}
pub(super) use functions;

/// The variable's value, unless empty.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// Where NVRTC may be, best first.
pub(super) fn nvrtc_candidates() -> Vec<PathBuf> {
    let names: &[&str] = if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    };
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut found: Vec<PathBuf> = Vec::new();
    if let Some(given) = variable("KILN_NVRTC").map(PathBuf::from) {
        match given.is_dir() {
            // Also the target folder of an installed wheel.
            true => {
                let wheels = wheel_folders(&given);
                folders.push(given);
                folders.extend(wheels);
            }
            false => found.push(given),
        }
    }
    for home in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        for lib in ["lib64", "lib", "targets/x86_64-linux/lib", "bin"] {
            folders.push(Path::new(&home).join(lib));
        }
    }
    for packages in site_packages() {
        folders.extend(wheel_folders(&packages));
    }
    for folder in [
        "/usr/local/cuda/lib64",
        "/usr/local/cuda-13/lib64",
        "/usr/local/cuda-12/lib64",
        "/usr/local/cuda/targets/x86_64-linux/lib",
        "/opt/cuda/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
    ] {
        folders.push(folder.into());
    }
    for folder in folders {
        found.extend(names.iter().map(|n| folder.join(n)));
    }
    found.extend(names.iter().map(PathBuf::from)); // as the system's loader finds them
    found
}

/// Where NVIDIA's wheels put NVRTC below a folder of Python packages.
fn wheel_folders(packages: &Path) -> Vec<PathBuf> {
    let nvidia = packages.join("nvidia");
    [
        "cu13/lib",
        "cuda_nvrtc/lib",
        "cu13/bin/x86_64",
        "cuda_nvrtc/bin",
    ]
    .map(|f| nvidia.join(f))
    .into()
}

/// The package folders of the Python environments in sight.
fn site_packages() -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(variable);
    let mut prefixes: Vec<PathBuf> = environments.map(PathBuf::from).collect();
    let path = variable("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path) {
        if folder.join("python3").exists() {
            prefixes.extend(folder.parent().map(PathBuf::from));
        }
    }
    let mut found: Vec<PathBuf> = Vec::new();
    for prefix in prefixes {
        for lib in ["lib", "lib64", "local/lib"] {
            let Ok(entries) = std::fs::read_dir(prefix.join(lib)) else {
                continue;
            };
            let mut pythons: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
            pythons.retain(|p| {
                let name = p.file_name().unwrap_or_default();
                name.to_string_lossy().starts_with("python3")
            });
            pythons.sort();
            for python in pythons {
                found.push(python.join("site-packages"));
                found.push(python.join("dist-packages"));
            }
        }
        found.push(prefix.join("Lib/site-packages"));
    }
    found.retain(|p| p.join("nvidia").is_dir());
    found
}
