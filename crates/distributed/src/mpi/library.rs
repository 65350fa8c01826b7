//! Finding and opening the library.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::env;
use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// The library of the standard ABI.
const FILE: &str = "libmpi_abi.so.1";

/// A handle of MPI's.
pub(super) type Handle = *mut c_void;
/// A count of elements.
pub(super) type Count = i64;
/// A user's reduction: operand, operand and result, elements, dtype.
pub(super) type UserFunction =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *mut Count, *mut Handle);

/// The constants of the standard ABI, version 1.
pub(super) mod constant {
    use crate::mpi::library::Handle;
    use std::ffi::{c_int, c_void};

    const fn handle(n: usize) -> Handle {
        std::ptr::without_provenance_mut(n)
    }

    pub const SUM: Handle = handle(0x21);
    pub const MIN: Handle = handle(0x22);
    pub const MAX: Handle = handle(0x23);
    pub const PRODUCT: Handle = handle(0x24);
    pub const WORLD: Handle = handle(0x101);
    pub const ERRORS_RETURN: Handle = handle(0x143);
    pub const NO_REQUEST: Handle = handle(0x180);
    pub const FLOAT: Handle = handle(0x210);
    pub const DOUBLE: Handle = handle(0x214);
    pub const INT8: Handle = handle(0x240);
    pub const UINT8: Handle = handle(0x241);
    pub const BYTE: Handle = handle(0x247);
    pub const INT16: Handle = handle(0x248);
    pub const UINT16: Handle = handle(0x249);
    pub const INT32: Handle = handle(0x250);
    pub const INT64: Handle = handle(0x258);
    pub const IN_PLACE: *const c_void = std::ptr::without_provenance(1);
    pub const THREAD_FUNNELED: c_int = 1024;
    pub const MAX_ERROR_STRING: usize = 512;
    pub const ABI: c_int = 1;
}

/// Declares the functions that are called, by their names without `MPI_`.
macro_rules! functions {
    ($($field:ident $name:literal ($($arg:ty),*);)*) => {
        /// The functions of an open library.
        pub(super) struct Api {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Api {
            fn load(library: Library, path: &Path) -> Result<Api, String> {
                // It stays open: MPI has threads and functions for the end of the process.
                let library = ManuallyDrop::new(library);
                Ok(Api {
                    // SAFETY: the types are those of the standard ABI.
                    $($field: *unsafe { library.get(concat!("MPI_", $name, "\0").as_bytes()) }
                        .map_err(|_| missing_symbol(path, $name))?,)*
                })
            }
        }
    };
}

functions! {
    abi_version "Abi_get_version" (*mut c_int, *mut c_int);
    init "Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize "Finalize" ();
    error_string "Error_string" (c_int, *mut c_char, *mut c_int);
    set_errors "Comm_set_errhandler" (Handle, Handle);
    rank "Comm_rank" (Handle, *mut c_int);
    size "Comm_size" (Handle, *mut c_int);
    group "Comm_group" (Handle, *mut Handle);
    include "Group_incl" (Handle, c_int, *const c_int, *mut Handle);
    create "Comm_create_group" (Handle, Handle, c_int, *mut Handle);
    create_op "Op_create_c" (UserFunction, c_int, *mut Handle);
    test "Test" (*mut Handle, *mut c_int, *mut c_void);
    send "Isend_c" (*const c_void, Count, Handle, c_int, c_int, Handle, *mut Handle);
    receive "Irecv_c" (*mut c_void, Count, Handle, c_int, c_int, Handle, *mut Handle);
    all_reduce "Iallreduce_c" (*const c_void, *mut c_void, Count, Handle, Handle, Handle, *mut Handle);
    reduce "Ireduce_c" (*const c_void, *mut c_void, Count, Handle, Handle, c_int, Handle, *mut Handle);
    reduce_scatter "Ireduce_scatter_block_c" (*const c_void, *mut c_void, Count, Handle, Handle, Handle, *mut Handle);
    broadcast "Ibcast_c" (*mut c_void, Count, Handle, c_int, Handle, *mut Handle);
    all_gather "Iallgather_c" (*const c_void, Count, Handle, *mut c_void, Count, Handle, Handle, *mut Handle);
    gather "Igather_c" (*const c_void, Count, Handle, *mut c_void, Count, Handle, c_int, Handle, *mut Handle);
    scatter "Iscatter_c" (*const c_void, Count, Handle, *mut c_void, Count, Handle, c_int, Handle, *mut Handle);
    all_to_all "Ialltoall_c" (*const c_void, Count, Handle, *mut c_void, Count, Handle, Handle, *mut Handle);
}

fn missing_symbol(path: &Path, name: &str) -> String {
    format!("{} has no MPI_{name}; {REMEDY}", path.display())
}

const REMEDY: &str = "install an MPI with the standard ABI of MPI 5 (`pip install mpich`), or name its folder in KILN_MPI";

impl Api {
    /// Opens a library, and checks its ABI.
    ///
    /// # Errors
    /// If it can't be opened, lacks a function, or has another ABI.
    pub fn open(path: &Path) -> Result<Api, String> {
        // SAFETY: the initialisers of an MPI have no preconditions. The user's installation determines that the file
        // is one. Its parts look for each other among global symbols.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|e| format!("{} can't be opened: {e}", path.display()))?;
        let api = Api::load(library, path)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it may be called before MPI is initialised.
        let status = unsafe { (api.abi_version)(&mut major, &mut minor) };
        match (status, major) {
            (0, constant::ABI) => Ok(api),
            _ => Err(format!(
                "{} has version {major}.{minor} of MPI's ABI, and Kiln calls version {}; {REMEDY}",
                path.display(),
                constant::ABI
            )),
        }
    }
}

/// The file of an MPI with the standard ABI.
///
/// # Errors
/// Lists where it was looked for, and MPIs with another ABI that are there.
pub(crate) fn find() -> Result<PathBuf, String> {
    let mut tried = Vec::new();
    let mut refused = Vec::new();
    let mut look = |folder: &Path| {
        let file = folder.join(FILE);
        if file.exists() {
            return Some(file);
        }
        let other = folder.join("libmpi.so");
        if other.exists() {
            refused.push(other.display().to_string());
        }
        tried.push(file.display().to_string());
        None
    };
    let candidates = match env::var_os("KILN_MPI")
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
    {
        Some(file) if file.is_file() => return Ok(file),
        // The folder that is named, and no other.
        Some(folder) => look(&folder).or_else(|| look(&folder.join("lib"))),
        None => {
            // SAFETY: as in `open`.
            if unsafe { Library::open(Some(FILE), RTLD_NOW) }.is_ok() {
                return Ok(FILE.into());
            }
            library_folders().iter().find_map(|f| look(f))
        }
    };
    candidates.ok_or_else(|| {
        let refused_text = match &refused[..] {
            [] => String::new(),
            refused => format!(" Found without that ABI: {}.", refused.join(", ")),
        };
        format!(
            "no MPI: {REMEDY}.{refused_text} Looked for\n  {}",
            tried.join("\n  ")
        )
    })
}

/// The folder with `mpiexec` that belongs to the MPI that is found, if it is there.
pub fn folder() -> Option<PathBuf> {
    let file = find().ok()?;
    let has = |bin: &PathBuf| bin.join("mpiexec").exists();
    match file.parent()?.parent() {
        Some(prefix) => Some(prefix.join("bin")).filter(has),
        // The system's loader knows where it is.
        None => env::split_paths(&env::var_os("PATH")?).find(has),
    }
}

/// The usual folders of libraries, without those that the system's loader knows.
fn library_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    // Beside `mpiexec`, and beside Python: the wheel `mpich` puts both there.
    let path = env::var_os("PATH").unwrap_or_default();
    for bin in env::split_paths(&path) {
        let is_there = ["mpiexec", "python3"].iter().any(|p| bin.join(p).exists());
        if let (true, Some(prefix)) = (is_there, bin.parent()) {
            folders.push(prefix.join("lib"));
        }
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        folders.extend(env::var_os(variable).map(|prefix| PathBuf::from(prefix).join("lib")));
    }
    folders.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/lib")));
    folders.push("/usr/local/lib".into());
    let mut distinct = std::collections::BTreeSet::new();
    folders.retain(|f| distinct.insert(f.clone()));
    folders
}
