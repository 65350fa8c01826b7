//! The system's C compiler, and libraries that it compiles from emitted sources.

use kiln_c99::{Program, Sources};
use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// The flags with which sources must compile without a message.
const FLAGS: &[&str] = &[
    "-std=c99",
    "-Wall",
    "-Wextra",
    "-pedantic",
    "-Werror",
    "-shared",
    "-fPIC",
];

/// True if there is a C compiler; prints a message once if there is none.
pub fn is_there() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let is_available = Command::new("cc")
            .arg("--version")
            .output()
            .is_ok_and(|o| o.status.success());
        if !is_available {
            eprintln!("skipped: there is no C compiler");
        }
        is_available
    })
}

/// Compiled sources.
pub struct Library {
    library: libloading::Library,
    name: String,
    /// The weights' file, if they have one.
    weights: Option<Vec<u64>>,
    folder: TempDir,
}

/// Returns a wrapper of an entry that takes its arguments from an array of pointers.
pub fn shim(name: &str, function: &str, params: usize) -> String {
    let mut text = String::new();
    let args: Vec<String> = (0..params).map(|i| format!("p[{i}]")).collect();
    let _ = writeln!(
        text,
        "int call_{function}(void **p);\nint call_{function}(void **p) {{ return {name}_{function}({}); }}",
        args.join(", ")
    );
    let arena = format!("{name}_{function}_ARENA").to_ascii_uppercase();
    let _ = writeln!(
        text,
        "long arena_{function}(void);\nlong arena_{function}(void) {{ return {arena}; }}"
    );
    text
}

impl Library {
    /// Compiles sources called `name` together with these wrappers.
    pub fn new(sources: &Sources, name: &str, optimised: &str, shims: &str) -> Library {
        let mut folder = tempfile::tempdir().unwrap();
        if std::env::var_os("KILN_KEEP").is_some() {
            folder.disable_cleanup(true);
            eprintln!("kept: {}", folder.path().display());
        }
        sources.write(folder.path()).unwrap();
        let shims = format!("#include \"{name}.h\"\n{shims}");
        std::fs::write(folder.path().join("shims.c"), shims).unwrap();
        let mut c_files: Vec<String> = vec!["shims.c".into()];
        let names = sources.files.iter().map(|(name, _)| name);
        c_files.extend(names.filter(|n| n.ends_with(".c")).cloned());
        // Further flags, such as those of sanitizers.
        let extra_flags = std::env::var("KILN_CFLAGS").unwrap_or_default();
        let out = Command::new("cc")
            .args(FLAGS)
            .args(optimised.split(' '))
            .args(extra_flags.split_whitespace())
            .args(["-o", "library.so"])
            .args(&c_files)
            .arg("-lm")
            .current_dir(folder.path())
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&out.stderr);
        let messages: Vec<&str> = messages.lines().take(40).collect();
        assert!(out.status.success(), "{}", messages.join("\n"));
        // SAFETY: the library has no constructors.
        let library = unsafe { libloading::Library::new(folder.path().join("library.so")) };
        let binary = format!("{name}_weights.bin");
        let weights = sources.files.iter().find(|(n, _)| *n == binary);
        Library {
            library: library.unwrap(),
            name: name.into(),
            weights: weights.map(|(_, bytes)| words(bytes)),
            folder,
        }
    }

    /// Returns the size of the library in bytes.
    #[allow(dead_code, reason = "used by some of the including programs")]
    pub fn bytes(&self) -> u64 {
        let file = self.folder.path().join("library.so");
        std::fs::metadata(file).map_or(0, |m| m.len())
    }

    /// Calls an entry and returns its outputs, which have these numbers of bytes, or the text of the error.
    pub fn call(
        &self,
        function: &str,
        inputs: &[Vec<u8>],
        outputs: &[usize],
    ) -> Result<Vec<Vec<u8>>, String> {
        type Call = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        // SAFETY: the shims have these signatures.
        let (call, arena) = unsafe {
            let call = self.library.get::<Call>(format!("call_{function}"));
            let arena = format!("arena_{function}");
            let arena = self
                .library
                .get::<unsafe extern "C" fn() -> std::ffi::c_long>(arena);
            (call.unwrap(), arena.unwrap()())
        };
        // No result may depend on the memory's initial bytes. The guard after each array must stay intact.
        const GUARD: u64 = 0x5aa5_1234_8765_c33c;
        let mut memory = vec![u64::MAX; arena as usize / 8 + 1];
        *memory.last_mut().unwrap() = GUARD;
        let mut input_words: Vec<Vec<u64>> = inputs.iter().map(|b| words(b)).collect();
        let mut output_words: Vec<Vec<u64>> =
            outputs.iter().map(|n| vec![GUARD; n / 8 + 2]).collect();
        let mut pointers: Vec<*mut c_void> = Vec::new();
        if let Some(weights) = &self.weights {
            pointers.push(weights.as_ptr().cast_mut().cast());
        }
        pointers.extend(
            input_words
                .iter_mut()
                .map(|g| g.as_mut_ptr().cast::<c_void>()),
        );
        pointers.extend(
            output_words
                .iter_mut()
                .map(|t| t.as_mut_ptr().cast::<c_void>()),
        );
        pointers.push(memory.as_mut_ptr().cast());
        // SAFETY: the arrays are as large as the entry's inputs, outputs and arena.
        let code = unsafe { call(pointers.as_mut_ptr()) };
        assert_eq!(
            memory.last(),
            Some(&GUARD),
            "{function} writes behind its arena"
        );
        if code != 0 {
            return Err(self.error(code));
        }
        let bytes = output_words.iter().zip(outputs).map(|(t, n)| {
            let bytes: Vec<u8> = t.iter().flat_map(|w| w.to_le_bytes()).collect();
            let guards: Vec<u8> = vec![GUARD; t.len()]
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect();
            assert_eq!(
                bytes[*n..],
                guards[*n..],
                "{function} writes behind an output"
            );
            bytes[..*n].to_vec()
        });
        Ok(bytes.collect())
    }

    fn error(&self, code: c_int) -> String {
        type Text = unsafe extern "C" fn(c_int) -> *const std::ffi::c_char;
        let name = format!("{}_error", self.name);
        // SAFETY: the function has this signature, and returns texts that live as long as the library.
        unsafe {
            let text = self.library.get::<Text>(name).unwrap()(code);
            std::ffi::CStr::from_ptr(text).to_str().unwrap().to_string()
        }
    }
}

/// Returns bytes as words, which are aligned to 8 bytes, with a word of zeros after them.
fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |b: &[u8]| {
        let mut padded = [0; 8];
        padded[..b.len()].copy_from_slice(b);
        u64::from_le_bytes(padded)
    };
    let mut words: Vec<u64> = bytes.chunks(8).map(word).collect();
    words.push(0);
    words
}

#[allow(dead_code, reason = "used by some of the including programs")]
/// Returns the wrappers of programs.
pub fn shims(name: &str, programs: &[Program<'_>], in_file: bool) -> String {
    let params = |p: &Program<'_>| {
        let arguments = p.inputs.iter();
        let arguments = arguments.filter(|i| matches!(i, kiln_c99::Input::Argument(_)));
        arguments.count() + p.outputs.len() + 1 + usize::from(in_file)
    };
    programs
        .iter()
        .map(|p| shim(name, p.name, params(p)))
        .collect()
}
