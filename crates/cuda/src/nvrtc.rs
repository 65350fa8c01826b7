//! NVRTC, NVIDIA's compiler as a library.

use super::cudarc::nvrtc::sys;
use super::elf;
use super::library::{Api, nvrtc_candidates, preload, variable};
use kiln_kernel::error::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls a function of NVRTC, which [`Nvrtc::get`] has opened. A status other than success is an error.
#[cfg(feature = "cudarc")]
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match sys::$function($($argument),*) {
            sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
            status => Err(status as u32),
        }
    };
}

#[cfg(not(feature = "cudarc"))]
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        Err::<(), u32>(0)
    };
}

/// Every function that is called.
const FUNCTIONS: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
    "nvrtcVersion",
];

/// The opened compiler. May be used from any number of threads.
pub struct Nvrtc {
    path: PathBuf,
    version: (i32, i32),
}

/// The kind of compiled code.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// PTX for a compute capability such as 80 or 90: text that the driver compiles.
    Ptx(u32),
    /// PTX that newer devices load too, without the features of a single architecture.
    Portable(u32),
    /// Machine code for exactly this compute capability.
    Cubin(u32),
}

impl Code {
    /// The kind of code for a device of a compute capability, by the architectures of the compiler: machine code, or
    /// for a newer device PTX of the newest older architecture.
    pub(super) fn best(capability: u32, architectures: &[u32]) -> Code {
        match architectures.iter().filter(|a| **a <= capability).max() {
            Some(older) if *older < capability => Code::Portable(*older),
            _ => Code::Cubin(capability),
        }
    }

    pub(super) fn capability(self) -> u32 {
        match self {
            Code::Ptx(c) | Code::Portable(c) | Code::Cubin(c) => c,
        }
    }

    /// True if kernels may use the features of capability 9.0 alone: products by warpgroups, and their copies.
    pub(super) fn has_warpgroups(self) -> bool {
        matches!(self, Code::Ptx(OWN_FEATURES) | Code::Cubin(OWN_FEATURES))
    }

    /// True if a device of this compute capability runs it, as NVIDIA guarantees: machine code on its own
    /// architecture, PTX on its own and newer ones, and PTX with the features of one architecture on that alone.
    pub fn runs_on(self, capability: u32) -> bool {
        match self {
            Code::Cubin(c) => c == capability,
            Code::Ptx(c) if c >= OWN_FEATURES => c == capability,
            Code::Ptx(c) | Code::Portable(c) => c <= capability,
        }
    }

    /// The architecture that compiled code names.
    pub(super) fn target(self) -> String {
        match self {
            Code::Ptx(c) | Code::Cubin(c) => format!("sm_{c}{}", suffix(c)),
            Code::Portable(c) => format!("sm_{c}"),
        }
    }

    /// The flag of the architecture. From 90 on it enables the features of that architecture alone.
    fn architecture_flag(self) -> String {
        format!("--gpu-architecture={self}")
    }

    /// The flags of a compilation. Arithmetic is as in the source, except for contraction to fused multiply-adds, which
    /// functions such as `__fmul_rn` prevent.
    pub fn flags(self) -> Vec<String> {
        let mut flags = vec![self.architecture_flag(), "--std=c++17".into()];
        if let Code::Cubin(_) = self {
            flags.push("--ptxas-options=-v".into());
        }
        flags
    }
}

/// The compute capability from which on architectures have features that later ones may lack.
const OWN_FEATURES: u32 = 90;

fn suffix(capability: u32) -> &'static str {
    if capability >= OWN_FEATURES { "a" } else { "" }
}

/// NVRTC's names: `compute_80`, `compute_90a` for PTX, `sm_90a` for machine code.
impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Code::Ptx(c) => write!(f, "compute_{c}{}", suffix(*c)),
            Code::Portable(c) => write!(f, "compute_{c}"),
            Code::Cubin(c) => write!(f, "sm_{c}{}", suffix(*c)),
        }
    }
}

impl std::str::FromStr for Code {
    type Err = String;

    /// Parses the text that `Display` prints.
    fn from_str(text: &str) -> std::result::Result<Code, String> {
        let (kind, number) = text.split_once('_').unwrap_or_default();
        let digits = number.strip_suffix('a').unwrap_or(number);
        let code = digits
            .parse()
            .ok()
            .and_then(|c| match (kind, digits == number) {
                ("compute", true) => Some(Code::Portable(c)),
                ("compute", false) => Some(Code::Ptx(c)),
                ("sm", _) => Some(Code::Cubin(c)),
                _ => None,
            });
        let valid =
            code.filter(|code| (30..1000).contains(&code.capability()) && code.to_string() == text);
        valid.ok_or_else(|| format!("no code for GPUs is called {text:?}"))
    }
}

/// True if machine code should also hold the PTX that it came from (`KILN_CUDA_PTX`).
pub(super) fn keeps_ptx() -> bool {
    variable("KILN_CUDA_PTX").is_some_and(|v| v != "0")
}

/// A compiled translation unit.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// PTX (ending in a zero byte) or machine code, which holds its PTX too if `KILN_CUDA_PTX` is set.
    pub image: Vec<u8>,
    /// The compiler's output: with machine code, registers, spills and shared memory of each kernel.
    pub log: String,
}

static COMPILATIONS: AtomicU64 = AtomicU64::new(0);

/// The number of translation units that this process has compiled.
pub fn compilations() -> u64 {
    COMPILATIONS.load(Ordering::Relaxed)
}

impl Nvrtc {
    /// The library of this machine: `KILN_NVRTC` (a file or folder), then CUDA's home, Python's environments, the
    /// usual folders and the system's loader. Searched for once.
    ///
    /// # Errors
    /// [`Error::Cuda`], listing the places and the reason that each failed.
    pub fn get() -> Result<&'static Nvrtc> {
        static NVRTC: OnceLock<Result<Nvrtc>> = OnceLock::new();
        NVRTC
            .get_or_init(Nvrtc::find)
            .as_ref()
            .map_err(Error::clone)
    }

    fn find() -> Result<Nvrtc> {
        let api = Api {
            name: "NVRTC, the compiler of CUDA kernels,",
            hint: "install CUDA 12 or 13 or `pip install nvidia-cuda-nvrtc`, or set KILN_NVRTC to the \
                   library or its folder",
            variable: "KILN_NVRTC",
            file: "libnvrtc.so",
            functions: FUNCTIONS,
            is_present: sys::is_culib_present,
            library: sys::culib,
        };
        let builtins = ["libnvrtc-builtins.so.", "nvrtc-builtins64_"];
        let candidates = nvrtc_candidates().into_iter().inspect(|path| {
            // Libraries in wheels have no path to each other.
            let folder = path.parent().filter(|f| f.is_absolute());
            folder.into_iter().for_each(|f| preload(f, &builtins));
        });
        let named = variable("KILN_NVRTC").map(PathBuf::from);
        let path = api.open(candidates, named.as_deref())?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to writable memory.
        let status = unsafe { call!(nvrtcVersion(&mut major, &mut minor)) };
        status
            .map_err(|status| Error::Cuda(format!("NVRTC gives error {status} for its version")))?;
        let version = (major, minor);
        Ok(Nvrtc { path, version })
    }

    /// The path at which it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The compute capabilities that it compiles for, such as 90; empty if it can't list them.
    pub fn architectures(&self) -> Vec<u32> {
        let mut count = 0;
        // SAFETY: the pointer is to writable memory.
        let status = unsafe { call!(nvrtcGetNumSupportedArchs(&mut count)) };
        let mut architectures = vec![0; status.map_or(0, |()| count.max(0) as usize)];
        if architectures.is_empty() {
            return Vec::new();
        }
        // SAFETY: the buffer has the number of elements that the library returned.
        let status = unsafe { call!(nvrtcGetSupportedArchs(architectures.as_mut_ptr())) };
        let architectures = architectures.into_iter().filter(|_| status.is_ok());
        architectures.map(|a| a as u32).collect()
    }

    /// Compiles a translation unit.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the compiler's messages, each with its line of the source.
    pub fn compile(&self, source: &str, code: Code) -> Result<Compiled> {
        COMPILATIONS.fetch_add(1, Ordering::Relaxed);
        let text = |s: &str| {
            CString::new(s).map_err(|_| Error::Cuda("a kernel's source holds a zero byte".into()))
        };
        let source_text = text(source)?;
        let mut program: sys::nvrtcProgram = null_mut();
        // SAFETY: the strings end in zero and outlive the call; there are no headers.
        let status = unsafe {
            let (source, name) = (source_text.as_ptr(), c"kernels.cu".as_ptr());
            call!(nvrtcCreateProgram(
                &mut program,
                source,
                name,
                0,
                null(),
                null()
            ))
        };
        status.map_err(|status| {
            Error::Cuda(format!("NVRTC gives error {status} for a new program"))
        })?;
        let flags = code
            .flags()
            .iter()
            .map(|f| text(f))
            .collect::<Result<Vec<_>>>()?;
        let pointers: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
        let (count, pointers) = (pointers.len() as c_int, pointers.as_ptr());
        // SAFETY: the program is alive, the flags end in zero, and buffers have the sizes that `read_bytes` gets.
        let (compiled, log, image, ptx) = unsafe {
            let compiled = call!(nvrtcCompileProgram(program, count, pointers));
            let log = read_bytes(
                |size| call!(nvrtcGetProgramLogSize(program, size)),
                |to| call!(nvrtcGetProgramLog(program, to)),
            );
            let ptx = || {
                read_bytes(
                    |size| call!(nvrtcGetPTXSize(program, size)),
                    |to| call!(nvrtcGetPTX(program, to)),
                )
            };
            let (image, ptx) = match code {
                Code::Ptx(_) | Code::Portable(_) => (ptx(), None),
                Code::Cubin(_) => {
                    let cubin = read_bytes(
                        |size| call!(nvrtcGetCUBINSize(program, size)),
                        |to| call!(nvrtcGetCUBIN(program, to)),
                    );
                    (cubin, keeps_ptx().then(ptx))
                }
            };
            let _ = call!(nvrtcDestroyProgram(&mut program));
            (compiled, log, image, ptx)
        };
        let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        let log = log.to_string_lossy().into_owned();
        let status = compiled.err().unwrap_or(0);
        if status != 0 || image.is_empty() {
            return Err(Error::Cuda(format!(
                "NVRTC {}.{} can't compile a kernel (error {status}):\n{}",
                self.version.0,
                self.version.1,
                with_lines(&log, source)
            )));
        }
        let image = match ptx {
            None => image,
            Some(ptx) => elf::with_ptx(image, &ptx).ok_or_else(|| {
                let why = "can't be kept with its PTX; unset KILN_CUDA_PTX";
                Error::Cuda(format!("machine code of NVRTC {:?} {why}", self.version))
            })?,
        };
        Ok(Compiled { image, log })
    }
}

/// The bytes that a pair of functions returns: one their number, the other the bytes. Empty if either fails.
fn read_bytes(
    size: impl FnOnce(&mut usize) -> std::result::Result<(), u32>,
    get: impl FnOnce(*mut c_char) -> std::result::Result<(), u32>,
) -> Vec<u8> {
    let mut n = 0;
    let mut bytes = vec![0u8; size(&mut n).map_or(0, |()| n)];
    if !bytes.is_empty() && get(bytes.as_mut_ptr().cast()).is_err() {
        bytes.clear();
    }
    bytes
}

/// The messages, each that names a source line followed by that line.
fn with_lines(log: &str, source: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let mut out = String::new();
    for message in log.lines() {
        out.push_str(message);
        out.push('\n');
        let number = message
            .strip_prefix("kernels.cu(")
            .and_then(|m| m.split(')').next());
        let line = number.and_then(|n| lines.get(n.parse::<usize>().ok()?.checked_sub(1)?));
        if let (Some(line), true) = (line, message.contains("error")) {
            out.push_str(&format!("    in: {}\n", line.trim()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn older_compilers_emit_older_ptx_for_newer_devices() {
        let known = [75, 80, 86, 90];
        assert_eq!(Code::best(86, &known), Code::Cubin(86));
        assert_eq!(Code::best(89, &known), Code::Portable(86));
        assert_eq!(Code::best(120, &known), Code::Portable(90));
        assert!(Code::Portable(90).flags()[0].ends_with("compute_90"));
        // For older devices, or an empty list, the compiler's own message is the clearest.
        assert_eq!(Code::best(70, &known), Code::Cubin(70));
        assert_eq!(Code::best(90, &[]), Code::Cubin(90));
    }

    #[test]
    fn code_runs_where_its_architecture_says() {
        let codes = ["compute_80", "compute_90", "compute_90a", "sm_80", "sm_90a"];
        let runs = |capability: u32| {
            let code = |text: &&&str| text.parse::<Code>().unwrap().runs_on(capability);
            codes.iter().filter(code).copied().collect::<Vec<&str>>()
        };
        assert_eq!(runs(75), Vec::<&str>::new());
        assert_eq!(runs(80), ["compute_80", "sm_80"]);
        assert_eq!(runs(86), ["compute_80"]);
        assert_eq!(
            runs(90),
            ["compute_80", "compute_90", "compute_90a", "sm_90a"]
        );
        assert_eq!(runs(120), ["compute_80", "compute_90"]);
        for other in [
            "",
            "sm_90",
            "compute_80a",
            "compute_090",
            "ptx_80",
            "sm_9999",
            "sm_+90a",
        ] {
            assert!(other.parse::<Code>().is_err(), "{other}");
        }
        for text in codes {
            assert_eq!(text.parse::<Code>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn every_called_function_is_listed() {
        let called = super::super::library::calls(include_str!("nvrtc.rs"), "nvrtc");
        let called = called.iter().map(|c| &c[..]).collect::<BTreeSet<&str>>();
        assert_eq!(called, FUNCTIONS.iter().copied().collect());
    }

    #[test]
    fn messages_show_the_line_of_the_source() {
        let shown = with_lines("kernels.cu(2): error: no", "one\n  two\nthree");
        assert_eq!(shown, "kernels.cu(2): error: no\n    in: two\n");
    }
}
