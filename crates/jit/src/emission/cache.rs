//! A cache of emitted code, by description.

use hashbrown::HashMap;
use kiln_kernel::lock::lock;
use kiln_x86::Code;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// The bytes of cached code above which entries are evicted. Callers keep evicted code alive.
const MAX_BYTES: usize = 32 << 20;

/// The size of a page. Code is allocated in multiples of it.
const PAGE: usize = 4096;

/// Machine code by the bytes of its description.
#[derive(Default)]
struct Cache {
    entries: HashMap<Vec<u8>, Entry>,
    bytes: usize,
    /// The number of look-ups so far.
    clock: u64,
}

struct Entry {
    code: Arc<Code>,
    /// The clock of the last use.
    last_used: u64,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

/// A hasher that collects the bytes.
struct HashedBytes(Vec<u8>);

impl Hasher for HashedBytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        unreachable!("the bytes themselves are compared")
    }
}

/// Returns the key of a description: a letter for the emitter, and the bytes that the description is hashed by.
pub fn key(emitter: u8, description: &impl Hash) -> Vec<u8> {
    let mut bytes = HashedBytes(vec![emitter]);
    description.hash(&mut bytes);
    bytes.0
}

/// Returns the code for `key` from the cache, or emits it. Profilers and dumps show `name`. Returns `None` if the
/// system gives no executable memory.
///
/// The code must depend on nothing besides the [`key`].
pub fn code(
    #[cfg_attr(not(feature = "testing"), expect(unused_mut))] mut key: Vec<u8>,
    name: impl FnOnce() -> String,
    emit: impl FnOnce() -> Vec<u8>,
) -> Option<Arc<Code>> {
    #[cfg(feature = "testing")]
    key.extend(kiln_kernel::bugs::seeded().unwrap_or_default().bytes());
    {
        let mut cache = lock(&CACHE);
        cache.clock += 1;
        let now = cache.clock;
        if let Some(entry) = cache.entries.get_mut(&key) {
            entry.last_used = now;
            return Some(entry.code.clone());
        }
    }
    // Emission runs outside the lock; two threads that emit the same code both get correct code.
    let (name, bytes) = (name(), emit());
    dump(&name, &bytes);
    let code = Arc::new(Code::named(&bytes, &name).ok()?);
    lock(&CACHE).insert(key, code.clone());
    Some(code)
}

/// Writes code to a file of the folder `code`, if the environment asks for dumps: as text, or in binary without the
/// feature `disassembly`. Errors are ignored, because code also runs without a dump.
fn dump(name: &str, code: &[u8]) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(location) = std::env::var_os("KILN_DUMP").filter(|p| !p.is_empty()) else {
        return;
    };
    let folder = Path::new(&location).join("code");
    let sanitize = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let slug: String = name.chars().map(sanitize).collect();
    let (process, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    #[cfg(feature = "disassembly")]
    let (extension, text) = ("asm", format!("; {name}\n{}", kiln_x86::disassemble(code)));
    #[cfg(not(feature = "disassembly"))]
    let (extension, text) = ("bin", code);
    let file = folder.join(format!("{process}-{n:04}-{slug}.{extension}"));
    let _ = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(file, text));
}

impl Cache {
    fn insert(&mut self, key: Vec<u8>, code: Arc<Code>) {
        let size = |key: &[u8], code: &Code| key.len() + code.bytes().len().next_multiple_of(PAGE);
        self.bytes += size(&key, &code);
        let last_used = self.clock;
        if let Some(old) = self.entries.insert(key.clone(), Entry { code, last_used }) {
            self.bytes -= size(&key, &old.code);
        }
        if self.bytes <= MAX_BYTES {
            return;
        }
        // Evicting the older half makes evictions rare.
        let mut uses: Vec<u64> = self.entries.values().map(|e| e.last_used).collect();
        uses.sort_unstable();
        let median = uses[uses.len() / 2];
        self.entries.retain(|_, e| e.last_used >= median);
        let entries = self.entries.iter();
        self.bytes = entries.map(|(k, e)| size(k, &e.code)).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_emitted_once_and_the_oldest_is_evicted() {
        let emit = |_: &[u8]| vec![0xC3u8; 1 << 20];
        let key = |i: u32| [b"cache test".as_slice(), &i.to_le_bytes()].concat();
        let code = |key, emit: &mut dyn FnMut() -> Vec<u8>| code(key, String::new, emit);
        let first = code(key(0), &mut || emit(&[])).unwrap();
        let again = code(key(0), &mut || panic!("emitted twice")).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        for i in 1..40 {
            code(key(i), &mut || emit(&[])).unwrap();
        }
        assert!(lock(&CACHE).bytes <= MAX_BYTES + (1 << 21));
        let mut emitted = false;
        code(key(0), &mut || {
            emitted = true;
            emit(&[])
        });
        assert!(emitted, "the oldest code was kept");
        assert_eq!(first.bytes()[0], 0xC3);
    }
}
