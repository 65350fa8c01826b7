//! Just enough of NVRTC to make the fixtures.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

type Program = *mut c_void;

/// The loaded library.
pub struct Nvrtc {
    library: *mut c_void,
    include: PathBuf,
}

fn open(path: &Path) -> *mut c_void {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: loading NVRTC runs nothing but its initialisers.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{} can't be loaded", path.display());
    library
}

impl Nvrtc {
    /// Opens `lib/libnvrtc.so.13` of a folder.
    pub fn open(folder: &Path) -> Nvrtc {
        // NVRTC finds this library only if it is loaded already.
        open(&folder.join("lib/libnvrtc-builtins.so.13.0"));
        let library = open(&folder.join("lib/libnvrtc.so.13"));
        Nvrtc {
            library,
            include: folder.join("include"),
        }
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` is its type.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the handle is that of a loaded library.
        let address = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?} is missing");
        // SAFETY: the caller says so; function pointers have the size of pointers.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// A text of NVRTC, read by a function for its size and one for its bytes.
    fn text(&self, program: Program, size: &CStr, get: &CStr) -> String {
        // SAFETY: the functions of NVRTC's header.
        unsafe {
            let size: extern "C" fn(Program, *mut usize) -> c_int = self.function(size);
            let get: extern "C" fn(Program, *mut c_char) -> c_int = self.function(get);
            let mut length = 0;
            size(program, &mut length);
            let mut bytes = vec![0u8; length];
            get(program, bytes.as_mut_ptr().cast());
            let text = CStr::from_bytes_until_nul(&bytes).unwrap();
            text.to_str().unwrap().to_string()
        }
    }

    /// Compiles a source. The PTX mentions the source without its folder.
    pub fn compile(&self, name: &str, source: &str, architecture: &str) -> String {
        let options = [
            format!(
                "--gpu-architecture={}",
                architecture.replace("sm", "compute")
            ),
            format!("-I{}", self.include.display()),
            "-lineinfo".into(),
        ]
        .map(|o| CString::new(o).unwrap());
        let pointers = options.each_ref().map(|o| o.as_ptr());
        let (name_c, source) = (CString::new(name).unwrap(), CString::new(source).unwrap());
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the functions of NVRTC's header, with pointers that live long enough.
        let status = unsafe {
            type Create = extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int;
            let create: Create = self.function(c"nvrtcCreateProgram");
            let none = std::ptr::null();
            assert_eq!(
                create(
                    &mut program,
                    source.as_ptr(),
                    name_c.as_ptr(),
                    0,
                    none,
                    none
                ),
                0
            );
            type Compile = extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
            let compile: Compile = self.function(c"nvrtcCompileProgram");
            compile(program, pointers.len() as c_int, pointers.as_ptr())
        };
        let log = self.text(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog");
        assert_eq!(status, 0, "{name}: {log}");
        let ptx = self.text(program, c"nvrtcGetPTXSize", c"nvrtcGetPTX");
        ptx.lines()
            .map(|line| without_folder(line) + "\n")
            .collect()
    }
}

/// A `.file` line without the folder of the file.
fn without_folder(line: &str) -> String {
    match (
        line.trim_start().starts_with(".file"),
        line.find('"'),
        line.rfind('/'),
    ) {
        (true, Some(quote), Some(slash)) if slash > quote => {
            format!("{}{}", &line[..=quote], &line[slash + 1..])
        }
        _ => line.to_string(),
    }
}
