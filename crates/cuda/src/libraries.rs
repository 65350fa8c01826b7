//! NVIDIA's libraries in reports: their versions, and the sensors that NVML reads. Only the driver and NVRTC are
//! needed.

use super::library::{cublas_lt, folders, nccl, variable};
use super::{Nvrtc, driver};
use kiln_kernel::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// A library of NVIDIA's, as far as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its name, such as `cuDNN`.
    pub name: &'static str,
    /// Its version, or the reason why there is none.
    pub version: Result<String, String>,
    /// The file that was opened, as it was asked for.
    pub file: Option<PathBuf>,
}

/// The driver, NVRTC, NVML, cuBLAS, cuDNN, NCCL and cuBLASLt of this machine. Opens those that are installed, which
/// takes a while for cuBLAS and cuDNN, and keeps them open.
pub fn libraries() -> Vec<Library> {
    let (version, file) = match driver() {
        Ok(((major, minor), file)) => (Ok(format!("CUDA {major}.{minor}")), Some(file.into())),
        Err(e) => (Err(e.to_string()), None),
    };
    let version = version.map(|cuda| match driver_version() {
        Some(package) => format!("{package}, {cuda}"),
        None => cuda,
    });
    let driver = Library {
        name: "driver",
        version,
        file,
    };
    let (version, file) = match Nvrtc::get() {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            (Ok(format!("{major}.{minor}")), Some(nvrtc.path().into()))
        }
        Err(e) => (Err(e.to_string()), None),
    };
    let nvrtc = Library {
        name: "NVRTC",
        version,
        file,
    };
    let nvml = Library {
        name: "NVML",
        version: nvml_version().ok_or_else(|| "not found".into()),
        file: variable("KILN_NVML").map(PathBuf::from),
    };
    let optional = OPTIONAL
        .iter()
        .map(|(name, files, version)| open_optional(name, files, *version));
    let libraries = [driver, nvrtc, nvml].into_iter().chain(optional);
    let loaded = [
        report_library("NCCL", "KILN_NCCL", nccl(), nccl_version),
        report_library("cuBLASLt", "KILN_CUBLASLT", cublas_lt(), lt_version),
    ];
    libraries.chain(loaded).collect()
}

/// Libraries that nothing depends on: name, file names, and the function that returns its version.
const OPTIONAL: [(&str, &[&str], Version); 2] = [
    (
        "cuBLAS",
        &["libcublas.so.13", "libcublas.so.12", "libcublas.so"],
        cublas,
    ),
    (
        "cuDNN",
        &["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"],
        cudnn,
    ),
];

type Version = fn(&libloading::Library) -> Option<String>;

/// Opens the first of these files that exists, in the folders of CUDA and of Python's wheels, or as the system's
/// loader finds it.
fn open_optional(name: &'static str, files: &[&str], version: Version) -> Library {
    let wheel = name.to_lowercase();
    let paths = folders(&wheel)
        .into_iter()
        .flat_map(|f| files.iter().map(move |file| f.join(file)));
    let paths = paths.filter(|path| path.exists());
    let opened = paths
        .chain(files.iter().map(PathBuf::from))
        .find_map(|path| {
            // SAFETY: the initialisers of NVIDIA's libraries have no preconditions.
            Some((unsafe { libloading::Library::new(&path) }.ok()?, path))
        });
    let Some((library, path)) = opened else {
        return Library {
            name,
            version: Err("not found".into()),
            file: None,
        };
    };
    let version = version(&library).ok_or_else(|| "has no version".into());
    // Closing it would run its finalisers.
    std::mem::forget(library);
    Library {
        name,
        version,
        file: Some(path),
    }
}

fn cublas(library: &libloading::Library) -> Option<String> {
    let property = |number| {
        let mut value = 0;
        // SAFETY: cuBLAS documents this type; the pointer is to writable memory.
        let status = unsafe {
            type Get = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
            library.get::<Get>("cublasGetProperty").ok()?(number, &mut value)
        };
        (status == 0).then_some(value)
    };
    Some(format!(
        "{}.{}.{}",
        property(0)?,
        property(1)?,
        property(2)?
    ))
}

fn cudnn(library: &libloading::Library) -> Option<String> {
    // SAFETY: cuDNN documents this type.
    let n = unsafe {
        library
            .get::<unsafe extern "C" fn() -> usize>("cudnnGetVersion")
            .ok()?()
    };
    // One digit of the major version up to 8, and from 9 on five digits: 8902 and 90100.
    let scale = if n < 10_000 { 1000 } else { 10_000 };
    Some(format!("{}.{}.{}", n / scale, n % scale / 100, n % 100))
}

/// A library that the engine opened. `variable_name` is the environment variable that names its file.
fn report_library(
    name: &'static str,
    variable_name: &str,
    library: Result<(&'static libloading::Library, &'static Path), Error>,
    version: Version,
) -> Library {
    let (version, file) = match library {
        Ok((library, path)) => {
            let version = version(library);
            let version = version.ok_or_else(|| "has no version".into());
            (version, Some(path.into()))
        }
        Err(e) if variable(variable_name).is_some() => (Err(e.to_string()), None),
        Err(_) => (Err("not found".into()), None),
    };
    Library {
        name,
        version,
        file,
    }
}

/// The version of an open cuBLASLt, such as `13.0.2`.
pub(super) fn lt_version(library: &libloading::Library) -> Option<String> {
    // SAFETY: cuBLASLt documents this type.
    let n = unsafe {
        type Get = unsafe extern "C" fn() -> usize;
        library.get::<Get>("cublasLtGetVersion").ok()?()
    };
    Some(format!("{}.{}.{}", n / 10_000, n % 10_000 / 100, n % 100))
}

/// The version of an open NCCL.
pub fn nccl_version(library: &libloading::Library) -> Option<String> {
    let mut n: c_int = 0;
    // SAFETY: NCCL documents this type; the pointer is to writable memory.
    let status = unsafe {
        type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
        library.get::<Get>("ncclGetVersion").ok()?(&mut n)
    };
    let scale = if n < 10_000 { 1000 } else { 10_000 };
    (status == 0).then(|| format!("{}.{}.{}", n / scale, n % scale / 100, n % 100))
}

/// The sensors of a GPU; `None` if NVML is missing or does not support one.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Sensors {
    /// The percentage of the last moments in which a kernel ran.
    pub utilization: Option<u32>,
    /// The percentage of the last moments in which memory was read or written.
    pub memory_utilization: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
}

/// NVML, which reads a GPU's sensors, opened and initialised. It usually comes with the driver.
struct Nvml(libloading::Library);

type Handle = *mut c_void;
/// Ends every function of NVML; 0 is success.
type Status = c_int;

impl Nvml {
    /// The library of this machine, if there is one.
    fn get() -> Option<&'static Nvml> {
        static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
        NVML.get_or_init(Nvml::find).as_ref()
    }

    fn find() -> Option<Nvml> {
        let names = match variable("KILN_NVML") {
            Some(file) => vec![file],
            None if cfg!(windows) => vec!["nvml.dll".into()],
            None => ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"]
                .map(Into::into)
                .into(),
        };
        // SAFETY: the initialisers of NVIDIA's libraries have no preconditions.
        let open = |name| unsafe { libloading::Library::new(name) }.ok();
        let nvml = Nvml(names.into_iter().find_map(open)?);
        // SAFETY: NVML documents this type.
        let init = unsafe {
            nvml.0
                .get::<unsafe extern "C" fn() -> Status>("nvmlInit_v2")
        };
        // SAFETY: it has no preconditions.
        let status = unsafe { init.ok()?() };
        (status == 0).then_some(nvml)
    }

    /// The number that a function of a device writes.
    fn number(&self, device: Handle, function: &str) -> Option<u32> {
        let mut value = 0;
        // SAFETY: the functions that this is called for have this type; the pointer is to writable memory.
        let status = unsafe {
            type Get = unsafe extern "C" fn(Handle, *mut c_uint) -> Status;
            self.0.get::<Get>(function).ok()?(device, &mut value)
        };
        (status == 0).then_some(value)
    }

    fn sensors(&self, bus: &CStr) -> Option<Sensors> {
        let mut device = null_mut();
        // SAFETY: NVML documents this type; the text ends in zero and the pointer is to writable memory.
        let status = unsafe {
            type Find = unsafe extern "C" fn(*const c_char, *mut Handle) -> Status;
            let find = self.0.get::<Find>("nvmlDeviceGetHandleByPciBusId_v2");
            find.ok()?(bus.as_ptr(), &mut device)
        };
        if status != 0 {
            return None;
        }
        let mut rates = [0; 2];
        // SAFETY: as above; the struct that it writes is two numbers.
        let has_rates = unsafe {
            type Rates = unsafe extern "C" fn(Handle, *mut [c_uint; 2]) -> Status;
            let get = self.0.get::<Rates>("nvmlDeviceGetUtilizationRates");
            get.is_ok_and(|get| get(device, &mut rates) == 0)
        };
        let mut temperature = 0;
        // SAFETY: as above; 0 is the sensor of the chip, the only one.
        let has_temperature = unsafe {
            type Get = unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> Status;
            let get = self.0.get::<Get>("nvmlDeviceGetTemperature");
            get.is_ok_and(|get| get(device, 0, &mut temperature) == 0)
        };
        Some(Sensors {
            utilization: has_rates.then_some(rates[0]),
            memory_utilization: has_rates.then_some(rates[1]),
            temperature: has_temperature.then_some(temperature),
            power: self.number(device, "nvmlDeviceGetPowerUsage"),
        })
    }

    /// The text that a function of the system returns.
    fn text(&self, function: &str) -> Option<String> {
        let mut text = [0u8; 96];
        // SAFETY: the functions that this is called for have this type, and write at most as many bytes.
        let status = unsafe {
            type Get = unsafe extern "C" fn(*mut c_char, c_uint) -> Status;
            let get = self.0.get::<Get>(function).ok()?;
            get(text.as_mut_ptr().cast(), text.len() as c_uint)
        };
        let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
        (status == 0).then(|| text.to_string())
    }
}

/// The sensors of the GPU at an address on the PCI bus.
pub(super) fn sensors(bus: &CStr) -> Sensors {
    let sensors = Nvml::get().and_then(|nvml| nvml.sensors(bus));
    sensors.unwrap_or_default()
}

/// The version of NVML, if it is there.
fn nvml_version() -> Option<String> {
    Nvml::get()?.text("nvmlSystemGetNVMLVersion")
}

/// The version of the driver's package, such as `580.95.05`, if NVML is there.
fn driver_version() -> Option<String> {
    Nvml::get()?.text("nvmlSystemGetDriverVersion")
}
