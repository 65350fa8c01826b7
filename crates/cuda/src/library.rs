//! Finding and opening libraries at run time. Builds need no part of CUDA.

use super::driver::Driver;
use kiln_kernel::error::{Error, Result};
use libloading::Library;
use std::ffi::{OsString, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The attempts to open a library, for the message when all of them fail.
#[derive(Default)]
struct Search {
    tried: Vec<String>,
}

impl Search {
    /// Opens `path`; a failure is recorded. A path that does not exist is not opened.
    fn open(&mut self, path: &Path) -> Option<Library> {
        if path.components().count() > 1 && !path.exists() {
            self.tried.push(format!("{}: no such file", path.display()));
            return None;
        }
        // SAFETY: the initialisers of NVIDIA's libraries have no preconditions. The user's installation determines
        // that the file is one of these.
        match unsafe { Library::new(path) } {
            Ok(library) => Some(library),
            Err(e) => {
                let mut e: &dyn std::error::Error = &e;
                while let Some(source) = e.source() {
                    e = source;
                }
                self.record_failure(path, e);
                None
            }
        }
    }

    fn record_failure(&mut self, path: &Path, why: impl std::fmt::Display) {
        self.tried.push(format!("{}: {why}", path.display()));
    }

    /// The error that lists every path.
    fn error(self, name: &str, hint: &str) -> Error {
        Error::Cuda(format!(
            "{name} was not found; {hint}. Looked for it in\n  {}",
            self.tried.join("\n  ")
        ))
    }
}

/// A library of NVIDIA's as cudarc calls it. cudarc looks each function up at its first call, in the library that the
/// system's loader returns for the library's usual names, and panics if it is missing. So Kiln opens the library
/// first, which the loader then returns for its soname, and calls nothing unless all functions are there.
pub(super) struct Api {
    /// Its name in messages.
    pub(super) name: &'static str,
    /// A remedy if it is not found.
    pub(super) hint: &'static str,
    /// The environment variable that names its file.
    pub(super) variable: &'static str,
    /// The first name that cudarc asks the loader for.
    pub(super) file: &'static str,
    /// Every function that is called.
    pub(super) functions: &'static [&'static str],
    /// True if the loader finds a library for one of cudarc's names.
    pub(super) is_present: unsafe fn() -> bool,
    /// The library that cudarc calls.
    pub(super) library: unsafe fn() -> &'static Library,
}

impl Api {
    /// Opens the first of these files that has all functions, and returns the file that calls use from now on. That
    /// is another one if the loader has the library under a name that cudarc tries first.
    ///
    /// # Errors
    /// [`Error::Cuda`] if none is found, or another one than the file or folder `named`.
    pub(super) fn open(
        &self,
        candidates: impl Iterator<Item = PathBuf>,
        named: Option<&Path>,
    ) -> Result<PathBuf> {
        if !cfg!(feature = "cudarc") {
            let why = "Kiln was built without its feature `cuda`";
            return Err(Error::Cuda(format!("{} is not opened: {why}", self.name)));
        }
        let mut search = Search::default();
        for path in candidates {
            let Some(library) = search.open(&path) else {
                continue;
            };
            if let Some(missing) = self.missing(&library) {
                search.record_failure(
                    &path,
                    format!("it has no {missing}; it may be older than CUDA 12"),
                );
                continue;
            }
            // Never closed, so that the loader keeps returning it.
            let library = Box::leak(Box::new(library));
            // SAFETY: the initialisers of NVIDIA's libraries have no preconditions.
            if !unsafe { (self.is_present)() } {
                let why = format!("the system's loader does not know it as {}", self.file);
                search.record_failure(&path, why);
                continue;
            }
            // SAFETY: as above.
            let resolved = unsafe { (self.library)() };
            let first_function = self.functions[0];
            if symbol(resolved, first_function) == symbol(library, first_function) {
                return Ok(path);
            }
            let loaded_file = symbol(resolved, first_function).and_then(file_of);
            let loaded_file = loaded_file.unwrap_or_else(|| PathBuf::from(self.file));
            let missing = self.missing(resolved);
            if missing.is_none() && !named.is_some_and(|named| path.starts_with(named)) {
                return Ok(loaded_file);
            }
            let missing = missing.map_or(String::new(), |f| format!(", which has no {f}"));
            return Err(Error::Cuda(format!(
                "{} is to be {}, but the system's loader gives {}{missing} as {file}: take that out of the loader's \
                 path (LD_LIBRARY_PATH), or begin it with a folder where {file} is a link to the first, or unset {}",
                self.name,
                path.display(),
                loaded_file.display(),
                self.variable,
                file = self.file,
            )));
        }
        Err(search.error(self.name, self.hint))
    }

    /// The first function that a library lacks.
    fn missing(&self, library: &Library) -> Option<&'static str> {
        let mut functions = self.functions.iter().copied();
        functions.find(|name| symbol(library, name).is_none())
    }

    /// True if the library, which is open, has a function.
    pub(super) fn has(&self, function: &str) -> bool {
        // SAFETY: it was called before.
        symbol(unsafe { (self.library)() }, function).is_some()
    }
}

/// The address of a library's function.
fn symbol(library: &Library, name: &str) -> Option<*const c_void> {
    // SAFETY: the address is only compared.
    unsafe { library.get::<*const c_void>(name) }
        .ok()
        .map(|s| *s)
}

/// The file that a function was loaded from.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the pointer is to writable memory; the name is a string that lives as long as the library.
        let name = unsafe {
            let is_found = libc::dladdr(function, info.as_mut_ptr()) != 0;
            let name = info.assume_init().dli_fname;
            (is_found && !name.is_null()).then(|| std::ffi::CStr::from_ptr(name))
        };
        name.map(|name| std::ffi::OsStr::from_bytes(name.to_bytes()).into())
    }
    #[cfg(not(unix))]
    None
}

/// The variable's value, unless empty.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// Opens the files of a folder whose names have one of these prefixes, for a library that has no path to them.
pub(super) fn preload(folder: &Path, prefixes: &[&str]) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|e| e.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            // Never closed.
            std::mem::forget(Search::default().open(&path));
        }
    }
}

/// The paths at which NVRTC may be, best first.
pub(super) fn nvrtc_candidates() -> Vec<PathBuf> {
    let names: &[&str] = if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    };
    let mut named_folders: Vec<PathBuf> = Vec::new();
    let mut candidates: Vec<PathBuf> = Vec::new();
    if let Some(named_path) = variable("KILN_NVRTC").map(PathBuf::from) {
        match named_path.is_dir() {
            // Also the target folder of an installed wheel.
            true => {
                let wheels = wheel_folders(&named_path, NVRTC_WHEEL);
                named_folders.push(named_path);
                named_folders.extend(wheels);
            }
            false => candidates.push(named_path),
        }
    }
    let in_folders = |folders: Vec<PathBuf>| {
        let join = |folder: PathBuf| names.iter().map(move |n| folder.join(n));
        folders.into_iter().flat_map(join).collect::<Vec<PathBuf>>()
    };
    candidates.extend(in_folders(named_folders));
    let mut usual = in_folders(folders(NVRTC_WHEEL));
    usual.extend(names.iter().map(PathBuf::from)); // as the system's loader finds them
    let driver = Driver::opened().and_then(|driver| driver.version().ok());
    put_newest_last(&mut usual, names[0], driver);
    candidates.extend(usual);
    candidates
}

/// Moves the files named for CUDA 13 to the end for an older driver, which can't load their code.
fn put_newest_last(paths: &mut [PathBuf], newest: &str, driver: Option<(u32, u32)>) {
    if driver.is_some_and(|(major, _)| major < 13) {
        paths.sort_by_key(|path| path.ends_with(newest));
    }
}

/// Opens NCCL, once. It comes from the file or folder that `KILN_NCCL` names, else as the system's loader finds it,
/// else from the folders of CUDA and of Python's wheels.
///
/// # Errors
/// [`Error::Cuda`] if it is not found, with the places that were searched.
pub fn nccl() -> Result<(&'static Library, &'static Path)> {
    static OPEN: OnceLock<Result<(Library, PathBuf)>> = OnceLock::new();
    let hint = "install it (`pip install nvidia-nccl-cu13`; for drivers of CUDA 12, `nvidia-nccl-cu12`), or name its \
                folder in KILN_NCCL";
    let names = ["libnccl.so.2", "libnccl.so"];
    open_once(&OPEN, "NCCL", hint, || {
        named_candidates("KILN_NCCL", &names, "nccl")
    })
}

/// Opens cuBLASLt, once, as [`nccl`] is; `KILN_CUBLASLT` names its file or folder.
///
/// # Errors
/// [`Error::Cuda`] if it is not found, with the places that were searched.
pub(super) fn cublas_lt() -> Result<(&'static Library, &'static Path)> {
    static OPEN: OnceLock<Result<(Library, PathBuf)>> = OnceLock::new();
    let names = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
    let hint = "install it (`pip install nvidia-cublas`; for drivers of CUDA 12, `nvidia-cublas-cu12`), or name its \
                folder in KILN_CUBLASLT";
    let candidates = || named_candidates("KILN_CUBLASLT", &names, "cublas");
    open_once(&OPEN, "cuBLASLt", hint, candidates)
}

/// Opens the first candidate that is a library, and keeps it open.
fn open_once(
    opened: &'static OnceLock<Result<(Library, PathBuf)>>,
    name: &str,
    hint: &str,
    candidates: impl Fn() -> Vec<PathBuf>,
) -> Result<(&'static Library, &'static Path)> {
    let open = opened.get_or_init(|| {
        let mut search = Search::default();
        let mut candidates = candidates().into_iter();
        let opened = candidates.find_map(|path| Some((search.open(&path)?, path)));
        opened.ok_or_else(|| search.error(name, hint))
    });
    let (library, path) = open.as_ref().map_err(Clone::clone)?;
    Ok((library, path))
}

/// The files or folder that a variable names, else the files as the system's loader finds them and those in the folders
/// of CUDA and of Python's wheels.
fn named_candidates(variable_name: &str, names: &[&str], wheel: &str) -> Vec<PathBuf> {
    let in_folders = |folders: Vec<PathBuf>| {
        folders
            .into_iter()
            .flat_map(|f| names.iter().map(move |n| f.join(n)))
    };
    match variable(variable_name).map(PathBuf::from) {
        Some(file) if !file.is_dir() => vec![file],
        Some(folder) => {
            let wheels = wheel_folders(&folder, wheel);
            in_folders([vec![folder], wheels].concat()).collect()
        }
        None => names
            .iter()
            .map(PathBuf::from)
            .chain(in_folders(folders(wheel)))
            .collect(),
    }
}

/// Declares a struct of the functions of a library that is opened at run time, by their names there.
#[macro_export]
macro_rules! symbols {
    ($(#[$about:meta])* $visibility:vis struct $type:ident {
        $($name:ident: fn($($argument:ty),* $(,)?) -> $result:ty),* $(,)?
    }) => {
        $(#[$about])*
        #[allow(non_snake_case)]
        $visibility struct $type {
            $($name: unsafe extern "C" fn($($argument),*) -> $result),*
        }

        impl $type {
            /// The functions of a library, or the name of one that it lacks.
            fn of(library: &'static $crate::DynamicLibrary) -> std::result::Result<$type, &'static str> {
                // SAFETY: the library documents these types.
                unsafe {
                    Ok($type {
                        $($name: *library.get(stringify!($name)).map_err(|_| stringify!($name))?),*
                    })
                }
            }
        }
    };
}

/// The folder of NVRTC in NVIDIA's wheels for CUDA 12.
const NVRTC_WHEEL: &str = "cuda_nvrtc";

/// The folders in which a library of CUDA's may be, best first: CUDA's home, Python's environments, the usual ones.
/// `wheel` is the library's folder in the wheels for CUDA 12.
pub(super) fn folders(wheel: &str) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for home in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable) {
        for lib in ["lib64", "lib", "targets/x86_64-linux/lib", "bin"] {
            folders.push(Path::new(&home).join(lib));
        }
    }
    for packages in site_packages() {
        folders.extend(wheel_folders(&packages, wheel));
    }
    let usual = [
        "/usr/local/cuda/lib64",
        "/usr/local/cuda-13/lib64",
        "/usr/local/cuda-12/lib64",
        "/usr/local/cuda/targets/x86_64-linux/lib",
        "/opt/cuda/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
    ];
    folders.extend(usual.map(PathBuf::from));
    folders
}

/// The folders in which NVIDIA's wheels put a library below a folder of Python packages.
fn wheel_folders(packages: &Path, wheel: &str) -> Vec<PathBuf> {
    let nvidia = packages.join("nvidia");
    let wheel = nvidia.join(wheel);
    vec![
        nvidia.join("cu13/lib"),
        wheel.join("lib"),
        nvidia.join("cu13/bin/x86_64"),
        wheel.join("bin"),
    ]
}

/// The package folders of Python environments that are active or whose `python3` is on `PATH`.
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
    let mut packages: Vec<PathBuf> = Vec::new();
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
                packages.push(python.join("site-packages"));
                packages.push(python.join("dist-packages"));
            }
        }
        packages.push(prefix.join("Lib/site-packages"));
    }
    packages.retain(|p| p.join("nvidia").is_dir());
    packages
}

/// The functions of a library that a source file calls.
#[cfg(test)]
pub(super) fn calls(text: &str, library: &str) -> Vec<String> {
    let pieces = text.split("call!(").chain(text.split("sys::"));
    let names = pieces.filter_map(|part| part.trim_start().split_once('(').map(|(name, _)| name));
    let of_library = |name: &&str| {
        let suffix = name.strip_prefix(library).unwrap_or_default();
        suffix.starts_with(|c: char| c.is_ascii_uppercase())
            && suffix
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    names.filter(of_library).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::put_newest_last;
    use std::path::PathBuf;

    #[test]
    fn a_driver_gets_an_nvrtc_of_its_version() {
        let order = |driver| {
            let paths = ["a/rtc.so.13", "a/rtc.so.12", "b/rtc.so.13", "b/rtc.so.12"];
            let mut paths = paths.map(PathBuf::from);
            put_newest_last(&mut paths, "rtc.so.13", driver);
            paths.map(|p| p.display().to_string())
        };
        let newest_first = ["a/rtc.so.13", "a/rtc.so.12", "b/rtc.so.13", "b/rtc.so.12"];
        for driver in [None, Some((13, 0)), Some((14, 2))] {
            assert_eq!(order(driver), newest_first);
        }
        let older = ["a/rtc.so.12", "b/rtc.so.12", "a/rtc.so.13", "b/rtc.so.13"];
        assert_eq!(order(Some((12, 4))), older);
    }
}
